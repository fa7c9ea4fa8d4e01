"""`Recorder`: the last collectives of one rank, cheap to write and there to be read when something hangs.

Every collective of `accel.collective`, every gradient reduction and every call of the control plane that waits makes an
entry when it begins and closes it when it is over, on every backend alike. The ring is written to a JSON file of this
rank on a timeout, on a crash and on SIGUSR1 (`accel._watch` decides when); `accel doctor hang` reads the files of all
ranks. An entry that is open is one that this rank was in.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

from accel._hang import SCHEMA
from accel._signature import Signature

CAPACITY = 2000
VARIABLE = "ACCEL_FLIGHT_DIR"
_ACCEL = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent) + os.sep
_SKIPPED = ("contextlib.py", "threading.py")
_inside: dict[str, bool] = {}  # file name of code -> whether it is accel's or torch's own


class Entry:
    """One collective of this rank. Times are seconds since 1970; `end` is None while it is not over."""

    __slots__ = ("_code", "_place", "end", "failed", "group", "number", "sequence", "signature", "start")

    def __init__(
        self, sequence: int, group: str, number: int, signature: Signature, code: CodeType | None, place: int
    ) -> None:
        self.sequence = sequence
        self.group = group
        self.number = number  # in its group, alike on all ranks; 0 where its group does not count
        self.signature = signature
        self._code = code  # of the user, who called it; None: unknown
        self._place = place  # of the instruction; which line that is takes longer to find out than all the rest
        self.start = time.time()
        self.end: float | None = None
        self.failed = ""  # the error's type name, where it ended in one

    def close(self, failed: str = "") -> None:
        self.end = time.time()
        self.failed = failed

    def __str__(self) -> str:
        number = f" number {self.number}" if self.number else ""
        return f"{self.signature}{number} of group {self.group!r} at {self.site}"

    @property
    def file(self) -> str:
        """The file of the user's code that called it."""
        return "?" if self._code is None else self._code.co_filename

    @property
    def site(self) -> str:
        """`file:line` of that call."""
        lines = [] if self._code is None else self._code.co_lines()
        return f"{self.file}:{next((line or 0 for low, high, line in lines if low <= self._place < high), 0)}"

    def to_plain(self) -> dict[str, Any]:
        signature = self.signature
        return {
            "sequence": self.sequence,
            "group": self.group,
            "number": self.number,
            "call": str(signature),
            "kind": signature.kind,
            "op": signature.op,
            "dtypes": signature.dtype_names(),
            "shapes": [list(shape) for shape in signature.shapes[:16]],
            "tensors": len(signature.shapes),
            "root": signature.root,
            "site": self.site,
            "start": self.start,
            "end": self.end,
            "failed": self.failed,
        }


class Recorder:
    """The ring of one rank. Entries are made by the thread that owns the session; any thread may read or dump."""

    def __init__(self, rank: int, world_size: int, run: str = "", capacity: int = CAPACITY) -> None:
        self.rank = rank
        self.world_size = world_size
        self.run = run  # of all ranks of one job, so that dumps of two jobs are told apart
        self.groups: dict[str, tuple[int, ...]] = {}  # name -> its global ranks
        self.latest: Entry | None = None
        self._ring: list[Entry | None] = [None] * capacity
        self._capacity = capacity
        self._made = 0
        self._reasons: list[str] = []
        self._writing = threading.Lock()

    def open(self, group: str, number: int, signature: Signature, inner: int = 1) -> Entry:
        """A new entry, with the place in the user's code that the call came from. `inner`: how many callers are
        accel's own for sure; each frame that need not be looked at saves time.
        """
        frame: FrameType | None = sys._getframe(inner)
        while frame is not None:
            name = frame.f_code.co_filename
            inside = _inside.get(name)
            if inside is None:
                inside = _inside[name] = _own(name)
            if not inside:
                break
            frame = frame.f_back
        made = self._made = self._made + 1
        code, place = (None, 0) if frame is None else (frame.f_code, frame.f_lasti)
        entry = Entry(made, group, number, signature, code, place)
        self._ring[made % self._capacity] = entry
        self.latest = entry
        return entry

    def entries(self) -> list[Entry]:
        """What is in the ring, oldest first."""
        return sorted((entry for entry in self._ring if entry is not None), key=lambda entry: entry.sequence)

    def current(self) -> Entry | None:
        """The entry that this rank is in: the latest that is open, else the latest."""
        latest = self.latest
        if latest is None or latest.end is None:
            return latest
        waiting = [entry for entry in self.entries()[-64:] if entry.end is None]
        return waiting[-1] if waiting else latest

    def dump(self, reason: str, peers: Mapping[int, Any], fabric: Any = None) -> Path:
        """Write the ring to this rank's file, whole or not at all; returns its path.

        `peers`: what this rank knows of the others, by rank. `fabric`: the fabric's own record, where it keeps one.
        """
        with self._writing:
            if reason not in self._reasons:
                self._reasons.append(reason)
            plain = {
                "schema": SCHEMA,
                "run": self.run,
                "rank": self.rank,
                "world_size": self.world_size,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "reasons": self._reasons[-8:],
                "time": time.time(),
                "groups": {name: list(ranks) for name, ranks in self.groups.items()},
                "peers": {str(rank): state for rank, state in peers.items()},
                "fabric": fabric,
                "entries": [entry.to_plain() for entry in self.entries()],
            }
            folder = directory(self.run)
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = folder / f"rank-{self.rank:05d}.json"
            half = path.with_suffix(f".{os.getpid()}.tmp")
            try:
                half.write_text(json.dumps(plain))
                half.replace(path)
            finally:
                with contextlib.suppress(FileNotFoundError):
                    half.unlink()
            return path


def directory(run: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Where dumps go: ACCEL_FLIGHT_DIR, else a folder of this run among the temporary files of this host."""
    return Path(environ.get(VARIABLE, "").strip() or Path(tempfile.gettempdir()) / f"accel-flight-{run}")


def entry_state(entry: Entry | None) -> dict[str, Any] | None:
    """What other ranks are told of the call that this one is in or was last in."""
    if entry is None:
        return None
    return {
        "call": str(entry.signature),
        "group": entry.group,
        "number": entry.number,
        "site": entry.site,
        "open": entry.end is None,
    }


def _own(name: str) -> bool:
    """Whether `name` is a file of accel's top level or of torch; accel's benchmarks and tests are users."""
    folder, file = os.path.split(name)
    return folder == _ACCEL or name.startswith((_TORCH, "<frozen")) or file in _SKIPPED
