"""Checkpoints on disk: a directory, complete or absent, that loads on any backend and any world size.

This file owns saving, reading and finding; the layout stands in `accel._manifest`. `accel._atomic_dir` replaces the
directory, `accel._state` takes state out of models and optimizers and puts it back, and the session decides who writes.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accel import _atomic_dir, _manifest
from accel._codec import decode, flatten, pack
from accel.errors import ArgumentError, CheckpointError, EncodingError

_log = logging.getLogger("accel")
_READ_TRIES = 5  # a checkpoint that another process replaces while it is read is read again


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as read: plain values and CPU tensors."""

    objects: dict[str, Any]
    ranks: dict[int, Any]
    meta: dict[str, Any]
    accel_version: str
    torch_version: str
    saved_ns: int  # nanoseconds since 1970 UTC, by the writer's clock


def save(
    path: str | os.PathLike[str], objects: Mapping[str, Any], *, ranks: Mapping[int, Any], meta: Mapping[str, Any]
) -> None:
    """Write a checkpoint at `path`, in place of the one that may be there. The parent directory is made when absent.

    Raises `ArgumentError` for a name that cannot be a file name, `EncodingError` for content that cannot be carried
    (both before anything is written), and `CheckpointError` when `path` holds something else or writing fails. After an
    error, a kill or a power failure at any moment, `read` finds the previous checkpoint or this one, whole.
    """
    target = _target(path)
    files = _files(objects, ranks)
    meta_tree, tensors = flatten(dict(meta), "meta")
    if tensors:
        raise EncodingError(f"meta: {next(iter(tensors))} is a tensor, array or bytes; meta takes plain values only")

    def fill(directory: Path) -> None:
        for folder in _manifest.FOLDERS:
            (directory / folder).mkdir()
        entries = {}
        for name, (tree, tensors) in files.items():
            data = pack(tree, tensors)
            _atomic_dir.write_file(directory / name, data)
            entries[name] = _manifest.entry(data)
        for folder in _manifest.FOLDERS:
            _atomic_dir.sync_directory(directory / folder)
        _manifest.finish(directory, entries, meta_tree)

    try:
        _make_room(target)
        _atomic_dir.write(target, fill)
    except OSError as exc:
        raise CheckpointError(
            f"saving to {target} failed ({exc}); a checkpoint that was there before is not lost; "
            "check space and permissions, or choose another path"
        ) from exc


def check_writable(path: str | os.PathLike[str]) -> None:
    """Raise `ArgumentError` when `save` could not write at `path`; an empty folder is made beside it and removed."""
    target = _target(path)
    try:
        if _is_there(target):
            _refuse_occupied(target)
        parent = next(folder for folder in target.parents if _is_there(folder))
        if not parent.is_dir():
            raise CheckpointError(f"{target} cannot be made, since {parent} is a file; choose another path")
        Path(tempfile.mkdtemp(prefix=".accel-check-", dir=parent)).rmdir()  # permission bits say too little
    except OSError as exc:
        raise ArgumentError(f"{target} cannot be written ({exc}); check permissions, or choose another path") from exc
    except CheckpointError as exc:
        raise ArgumentError(str(exc)) from exc


def read(path: str | os.PathLike[str]) -> Checkpoint:
    """The checkpoint at `path`, after every checksum was found right.

    When the last save to `path` was killed after it moved the previous checkpoint aside and before it renamed the new
    one into place, the one it left beside `path` is read. Raises `CheckpointError`, naming the file, for a checkpoint
    that is absent, incomplete, damaged, foreign or of a newer schema.
    """
    target = _target(path)
    for _ in range(_READ_TRIES - 1):
        directory = _locate(target)
        identity = _identity(directory)
        try:
            return _read(directory)
        except CheckpointError:
            if identity is not None and _identity(_locate(target)) == identity:
                raise
    return _read(_locate(target))


def latest(folder: str | os.PathLike[str]) -> Path | None:
    """The checkpoint directly below `folder` that was saved last, by the writers' clocks; None when there is none.

    Partial checkpoints are passed over; one of a newer schema is not, so that `read` says what to do. Raises
    `CheckpointError` when `folder` is not a directory or cannot be listed.
    """
    folder = Path(folder)
    if not folder.exists():
        return None
    try:
        names = {_atomic_dir.logical_name(entry.name) for entry in folder.iterdir() if not entry.is_symlink()}
    except OSError as exc:
        raise CheckpointError(f"{folder} cannot be searched for checkpoints ({exc}); give their directory") from exc
    found = []
    for name in names:
        directory = _present(folder / name)
        manifest = None if directory is None else _manifest.complete(directory)
        if manifest is not None:
            found.append((manifest["saved_ns"], name))
        elif directory is not None and (directory / _manifest.MANIFEST).exists():
            _log.warning("%s is incomplete or damaged and is passed over", directory)
    return folder / max(found)[1] if found else None


def _target(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(path))  # a link to a checkpoint stands for it: renaming must not replace the link


def _is_there(path: Path) -> bool:
    """Whether `path` exists, be it a dangling link. Raises `OSError` where that may not be looked at."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _files(objects: Mapping[str, Any], ranks: Mapping[int, Any]) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Tree and tensors of everything to be stored, by file name: copied from devices and known to be encodable."""
    files = {}
    for name, obj in objects.items():
        if not _manifest.OBJECT_NAME.fullmatch(name):
            raise ArgumentError(f"object name {name!r} must be 1-100 letters, digits, '_' or '-', as it names a file")
        files[_manifest.object_file(name)] = flatten(obj, f"object[{name!r}]")
    if len({name.casefold() for name in objects}) < len(objects):
        raise ArgumentError(f"object names {sorted(objects)} differ only in case, which file systems may ignore")
    for rank, obj in ranks.items():
        if rank < 0:
            raise ArgumentError(f"rank {rank!r} must be 0 or more")
        files[_manifest.rank_file(rank)] = flatten(obj, f"rank[{rank}]")
    return files


def _make_room(target: Path) -> None:
    """Check that what is at `target` may be replaced; put back what a killed save moved aside; delete what it left."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not os.path.lexists(target):
        left = _present(target)
        if left is not None:
            left.rename(target)
    else:
        _refuse_occupied(target)
    for stale in [directory for kind in _atomic_dir.KINDS for directory in _atomic_dir.siblings(target, kind)]:
        _atomic_dir.remove(stale)


def _refuse_occupied(target: Path) -> None:
    """Raise `CheckpointError` when what is at `target` must not be replaced."""
    if not target.is_dir():
        raise CheckpointError(f"{target} is a file, not a directory; choose another path or delete it")
    _refuse_foreign(target)


def _refuse_foreign(directory: Path) -> None:
    """Raise `CheckpointError` when `directory` holds what no save wrote, because replacing would delete it."""
    present = [entry for entry in directory.rglob("*") if entry.is_symlink() or not entry.is_dir()]
    if not present:
        return
    file = directory / _manifest.MANIFEST
    try:
        files = _manifest.parse(_manifest.read_bytes(file), file)["files"]
    except CheckpointError as exc:
        raise CheckpointError(
            f"{directory} holds files but no checkpoint of accel; nothing was deleted; "
            f"choose another path, or move that directory away ({exc})"
        ) from exc
    foreign = sorted(
        {str(entry.relative_to(directory)) for entry in present} - {_manifest.MANIFEST, _manifest.MARKER, *files}
    )
    if foreign:
        raise CheckpointError(
            f"{directory} holds {foreign[0]!r} beside its checkpoint ({len(foreign)} such files), which saving would "
            "delete; move it away or choose another path"
        )


def _present(target: Path) -> Path | None:
    """The directory that holds checkpoint `target`: itself or, when absent, a complete one that a killed save left."""
    if os.path.lexists(target):
        return target
    for kind in _atomic_dir.KINDS:  # both complete: the new one was about to take the place
        for sibling in _atomic_dir.siblings(target, kind):
            if _manifest.complete(sibling) is not None:
                return sibling
    return None


def _locate(target: Path) -> Path:
    try:
        directory = _present(target)
    except OSError as exc:
        raise CheckpointError(f"{target} cannot be looked up ({exc}); check permissions") from exc
    if directory is None:
        partial = next(_atomic_dir.siblings(target, "new"), None)
        hint = f"; {partial.name} beside it was left by an interrupted save and is incomplete" if partial else ""
        raise CheckpointError(f"there is no checkpoint at {target}{hint}")
    if directory != target:
        _log.warning("%s is absent because a save was killed; reading %s, which it left", target, directory.name)
    elif not directory.is_dir():
        raise CheckpointError(f"{target} is not a directory, so it is no checkpoint of accel; give its directory")
    return directory


def _identity(directory: Path) -> tuple[int, ...] | None:
    """Tells two directories of the same name apart; None when it is gone."""
    try:
        status = directory.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _read(directory: Path) -> Checkpoint:
    manifest = _manifest.verified(directory)
    objects: dict[str, Any] = {}
    ranks: dict[int, Any] = {}
    for name, expected in manifest["files"].items():
        data = _manifest.read_bytes(directory / name)
        if _manifest.entry(data) != expected:
            raise CheckpointError(
                f"{directory / name} is damaged: its {len(data)} bytes do not have the checksum of the "
                f"{expected['bytes']} bytes saved; use an earlier checkpoint"
            )
        try:
            value = decode(data)
        except EncodingError as exc:
            raise CheckpointError(f"{directory / name} cannot be decoded: {exc}") from exc
        owner = _manifest.owner(name)
        if isinstance(owner, int):
            ranks[owner] = value
        else:
            objects[owner] = value
    return Checkpoint(objects, ranks, manifest["meta"], manifest["accel"], manifest["torch"], manifest["saved_ns"])
