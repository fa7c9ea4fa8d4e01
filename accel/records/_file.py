"""Record files: validation, atomic writing, and reading that says what is wrong with a file and what to do.

A file is complete or absent: it is written under a temporary name, synced and renamed. NaN and infinity are not JSON
and never enter a file; a figure that is not finite is a null with a reason, or the record is refused.
"""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from accel.errors import ArgumentError, RecordError
from accel.records._consistent import check_consistency
from accel.records._record import SCHEMA, Record

log = logging.getLogger("accel")


@cache
def schema() -> dict[str, Any]:
    """The published JSON Schema of a record."""
    loaded: dict[str, Any] = json.loads(files("accel.records").joinpath("schema.json").read_text(encoding="utf-8"))
    return loaded


def check(data: Any, where: str = "record") -> None:
    """Raise `RecordError`, in one line that opens with `where`, unless `data` is a valid and consistent record."""
    if not isinstance(data, dict) or "schema" not in data:
        raise RecordError(
            f'{where}: not an accel record (no "schema" field); records are made by `accel bench`, leave this file out'
        )
    _check_version(data["schema"], where)
    violation = _violation(data)
    if violation is not None:
        raise RecordError(f"{where}: does not follow {SCHEMA}: {violation}; make the record again")
    for place, number in _numbers(data):
        if not math.isfinite(number):
            raise RecordError(f"{where}: {place} is {number}, not a finite number; give null and a reason instead")
    check_consistency(data, where)


@cache
def _validator() -> Any:
    """The schema's validator; None in a bare checkout on a machine without jsonschema (`.ci/bare.py`)."""
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        log.warning("jsonschema is not installed: records are not compared with their schema here, only where it is")
        return None
    return Draft202012Validator(schema())


def _violation(data: dict[str, Any]) -> str | None:
    """Where and how `data` departs from the schema."""
    validator = _validator()
    if validator is None:
        return None
    from jsonschema.exceptions import best_match

    error = best_match(validator.iter_errors(data))
    if error is None:
        return None
    place = ".".join(str(part) for part in error.absolute_path) or "record"
    return f"{place}: {_short(error.message)}"


def write(record: Record, path: str | os.PathLike[str]) -> Path:
    """Write `record` to the file `path`, complete or not at all, and return the path.

    Raises `RecordError` for a record that does not follow the schema, `ArgumentError` where `path` cannot be written.
    """
    data = record.to_plain()
    check(data, f"record {record.id!r}")
    return write_text(json.dumps(data, indent=1, allow_nan=False, ensure_ascii=False) + "\n", path)


def write_text(text: str, path: str | os.PathLike[str]) -> Path:
    """Write `text` to the file `path`, complete or not at all. Raises `ArgumentError` where it cannot be written."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
        try:
            with draft.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)
    except OSError as error:
        raise ArgumentError(_unwritable(target, error)) from error
    return target


def read(path: str | os.PathLike[str]) -> Record:
    """The record in the file `path`. Raises `RecordError`, in one line that names the file and says what to do."""
    name = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise RecordError(f"{name}: cannot be read ({error.strerror or error}); give a record file") from error
    except UnicodeDecodeError as error:
        raise RecordError(f"{name}: not a text file, so not an accel record; leave this file out") from error
    if not text.strip():
        raise RecordError(f"{name}: empty file, not an accel record; make the record again")
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        detail = _short(str(error))
        raise RecordError(f"{name}: truncated or not JSON ({detail}); make or copy the record again") from error
    check(data, name)
    return Record.from_plain(data)


def destination(out: str | os.PathLike[str], record_id: str) -> Path:
    """The file for a record: `out` itself when it ends in .json, else `<record_id>.json` in the folder `out`.

    Creates the folder and tries a file in it, so that a path that cannot be written is found before a run and not
    after it. Raises `ArgumentError`.
    """
    given = Path(out)
    target = given if given.suffix == ".json" else given / f"{record_id}.json"
    try:
        if target.is_dir():
            raise IsADirectoryError(21, "is a folder")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target.parent):
            pass
    except OSError as error:
        raise ArgumentError(_unwritable(target, error)) from error
    return target


def _unwritable(target: Path, error: OSError) -> str:
    reason = error.strerror or error
    return f"cannot write the record {str(target)!r} ({reason}); choose another folder or file with --out"


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":  # elsewhere a folder cannot be opened for syncing
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _check_version(found: Any, where: str) -> None:
    if found == SCHEMA:
        return
    family, _, version = str(found).partition("/")
    own = int(SCHEMA.partition("/")[2])
    if family == SCHEMA.partition("/")[0] and version.isascii() and version.isdigit() and int(version) > own:
        raise RecordError(
            f"{where}: has schema {found!r}, newer than {SCHEMA!r} that this accel reads; upgrade accel-torch"
        )
    raise RecordError(
        f"{where}: has schema {_short(repr(found))}, expected {SCHEMA!r}; not an accel record, leave this file out"
    )


def _numbers(value: Any, place: str = "") -> list[tuple[str, float]]:
    if isinstance(value, float):
        return [(place, value)]
    if isinstance(value, dict):
        return [pair for key, item in value.items() for pair in _numbers(item, f"{place}.{key}" if place else str(key))]
    if isinstance(value, list):
        return [pair for index, item in enumerate(value) for pair in _numbers(item, f"{place}[{index}]")]
    return []


def _short(text: str, limit: int = 160) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."
