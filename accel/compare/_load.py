"""From the paths on the command line to records: files as given, and the `.json` files directly in a folder.

A file that is not a record is refused by name. Found while reading a folder it may be skipped on request, and is still
named.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from accel import records
from accel.errors import ArgumentError, RecordError
from accel.records import Record


class Loaded(NamedTuple):
    """Records by the file they came from, and one line for each file that was skipped."""

    records: dict[Path, Record]
    skipped: list[str]


def load(paths: Sequence[str | Path], *, skip_invalid: bool = False) -> Loaded:
    """Read every path: a record file, or a folder of them in the order of their time.

    `skip_invalid` leaves out files of a folder that are not records; one given by itself is always refused. Raises
    `ArgumentError` for a path that does not exist or a folder without records, `RecordError` for what is not a record.
    """
    if not paths:
        raise ArgumentError("no record given; name record files or folders of them, such as results/")
    found: dict[Path, Record] = {}
    skipped: list[str] = []
    for path in map(Path, paths):
        if not path.exists():
            raise ArgumentError(
                f"{path}: no such file or folder; give a record made by `accel bench`, or a folder of them"
            )
        if path.is_dir():
            inside, faults = _folder(path, skip_invalid)
            skipped += faults
        else:
            inside = {path: records.read(path)}
        known = {file.resolve() for file in found}
        found.update({file: record for file, record in inside.items() if file.resolve() not in known})
    _refuse_twins(found)
    return Loaded(found, skipped)


def _folder(folder: Path, skip_invalid: bool) -> tuple[dict[Path, Record], list[str]]:
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == ".json" and not file.name.startswith("."))
    except OSError as error:
        raise ArgumentError(
            f"{folder}: cannot be listed ({error.strerror or error}); give a folder of records"
        ) from error
    inside: dict[Path, Record] = {}
    faults: list[str] = []
    for file in files:
        try:
            inside[file] = records.read(file)
        except RecordError as error:
            faults.append(str(error))
    if faults and not skip_invalid:
        raise RecordError(
            f"{folder}: {len(faults)} of {len(files)} .json files cannot be used: {' | '.join(faults)} "
            "(move them away, or pass --skip-invalid)"
        )
    if not inside:
        raise ArgumentError(f"{folder}: no records in this folder; make one with `accel bench resnet50 --out {folder}`")
    return dict(sorted(inside.items(), key=lambda item: (item[1].time, item[1].id))), faults


def _refuse_twins(found: dict[Path, Record]) -> None:
    by_id: dict[str, Path] = {}
    for path, record in found.items():
        other = by_id.setdefault(record.id, path)
        if other != path:
            raise RecordError(f"{other} and {path} hold the same run {record.id!r}; give only one of the two")
