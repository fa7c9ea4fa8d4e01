"""A directory that is complete or absent: written beside its place, synced, then renamed into it.

While `NAME` is being replaced, `.NAME.new-*` (being written) and `.NAME.old-*` (moved aside) stand beside it. A process
killed in between leaves them behind; `siblings` finds them. What makes a directory complete is the caller's matter.

One writer at a time: a second one, which is a mistake, meets an `OSError`; no directory is ever mixed from two.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

_log = logging.getLogger("accel")
_SIBLING = re.compile(r"\.(?P<name>.+)\.(?P<kind>new|old)-[0-9a-f]{12}")

Kind = Literal["new", "old"]
KINDS: tuple[Kind, ...] = ("new", "old")  # the newer first


def write(target: Path, fill: Callable[[Path], None]) -> None:
    """Let `fill` write an empty directory, then put that in the place of `target`, whatever is there.

    When anything is raised on the way, `target` is as it was and nothing is left beside it; only when the last sync of
    all fails is the new directory in place and the former one beside it. `fill` syncs what it writes (`write_file`,
    `sync_directory`).
    """
    new = _sibling(target, "new")
    try:
        new.mkdir()
        fill(new)
        sync_directory(new)
        old = _swap(new, target)
    except BaseException:
        shutil.rmtree(new, ignore_errors=True)
        raise
    sync_directory(target.parent)
    if old is not None:
        remove(old)


def write_file(path: Path, data: bytes) -> None:
    """Create `path` with `data` on disk when this returns."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Bring the names in directory `path` onto the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def siblings(target: Path, kind: Kind) -> Iterator[Path]:
    """The directories that earlier writers of `target` left beside it."""
    try:
        entries = sorted(target.parent.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        match = _SIBLING.fullmatch(entry.name)
        if (
            match
            and (match["name"], match["kind"]) == (target.name, kind)
            and entry.is_dir()
            and not entry.is_symlink()
        ):
            yield entry


def logical_name(name: str) -> str:
    """The `NAME` that directory `name` stands for: itself, unless it is a sibling left by a writer of `NAME`."""
    match = _SIBLING.fullmatch(name)
    return match["name"] if match else name


def remove(directory: Path) -> None:
    """Delete a directory that is no longer needed; one that resists is reported and left to the next writer."""
    try:
        shutil.rmtree(directory)
    except OSError as exc:
        _log.warning("%s is no longer needed but cannot be deleted (%s); the next save tries again", directory, exc)


def _swap(new: Path, target: Path) -> Path | None:
    """Rename `new` to `target`; return where the former `target` now is, None when there was nothing in it."""
    if not target.exists() or not any(target.iterdir()):
        new.rename(target)  # takes the place of an empty directory, too
        return None
    old = _sibling(target, "old")
    target.rename(old)
    try:
        new.rename(target)
    except BaseException:
        old.rename(target)
        raise
    return old


def _sibling(target: Path, kind: Kind) -> Path:
    return target.with_name(f".{target.name}.{kind}-{secrets.token_hex(6)}")
