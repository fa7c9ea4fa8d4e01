"""What the flight records of a job's ranks say together: which rank is behind, at which call, and who waits for it.

`read` takes a folder of dumps and refuses what cannot be one job; `explain` turns them into lines. A rank without a
dump is described by what the others last heard of it. Imports no torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel._words import named, told
from accel.errors import ArgumentError, RecordError

SCHEMA = 1
_FIELDS = {
    "schema": int,
    "run": str,
    "rank": int,
    "world_size": int,
    "time": float,
    "groups": dict,
    "peers": dict,
    "entries": list,
}
_ENTRY = {"group": str, "number": int, "call": str, "site": str, "start": float, "failed": str}
_WAITED = "CollectiveTimeout"  # an entry that ended in it was one that this rank waited in


@dataclass
class Job:
    """The dumps of one run by rank, and what was left out of them."""

    run: str
    world_size: int
    dumps: dict[int, dict[str, Any]]
    notes: list[str] = field(default_factory=list)


@dataclass
class Place:
    """Where one rank is: in `call` (waiting) or past it."""

    rank: int
    call: str = ""
    group: str = ""
    number: int = 0
    site: str = ""
    waiting: bool = False
    since: float | None = None  # seconds before its dump that it began to wait
    dumped: bool = True


def read(folder: str | Path) -> Job:
    """The job whose dumps lie in `folder`. Truncated ones are left out with a note.

    Raises `ArgumentError` where there is no such folder or no dump in it, `RecordError` where none can be read or they
    are of several runs.
    """
    path = Path(folder)
    if not path.is_dir():
        raise ArgumentError(f"{str(folder)!r} is not a folder; give the one that holds the ranks' flight records")
    files = sorted(path.glob("rank-*.json"))
    if not files:
        raise ArgumentError(
            f"{str(folder)!r} holds no flight record (rank-*.json); ranks write theirs on a timeout, on a crash and on "
            "SIGUSR1, into ACCEL_FLIGHT_DIR or the folder that the error names"
        )
    notes, runs = [], dict[str, dict[int, tuple[Path, dict[str, Any]]]]()
    for file in files:
        try:
            dump = _checked(file)
        except RecordError as error:
            notes.append(f"{error}; it is left out")
            continue
        runs.setdefault(dump["run"], {})[dump["rank"]] = file, dump
    if not runs:
        raise RecordError(f"no flight record in {str(folder)!r} can be read: {'; '.join(notes)}")
    if len(runs) > 1:
        sides = [f"run {run}: {named(sorted(ranks))}" for run, ranks in sorted(runs.items())]
        raise RecordError(
            f"{str(folder)!r} holds flight records of {len(runs)} runs ({'; '.join(sides)}); move those of all but one "
            "elsewhere, or give each run an ACCEL_FLIGHT_DIR of its own"
        )
    run, found = next(iter(runs.items()))
    dumps = {rank: dump for rank, (_, dump) in sorted(found.items())}
    return Job(run, next(iter(dumps.values()))["world_size"], dumps, notes)


def explain(job: Job) -> list[str]:
    """The findings, the most telling first, then one line a rank, then the notes."""
    places = {rank: _place(rank, job) for rank in range(job.world_size)}
    findings = [line for group in _groups(job) for line in _group(group, _members(job, group), job)]
    if not findings:
        waiting = [place.rank for place in places.values() if place.waiting]
        findings = [f"{named(waiting)} waited, and no dump tells for whom" if waiting else "no rank waited for another"]
    lines = [f"run {job.run}: {len(job.dumps)} of {job.world_size} ranks left a flight record", *findings]
    lines += [_line(place, job) for place in places.values()]
    return [*lines, *_fabric(job), *job.notes]


def _checked(file: Path) -> dict[str, Any]:
    try:
        dump = json.loads(file.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RecordError(f"{file.name} is truncated or not JSON ({error})") from error
    if not isinstance(dump, dict) or not _has(dump, _FIELDS) or not all(_has(e, _ENTRY) for e in dump["entries"]):
        raise RecordError(f"{file.name} is not a flight record of accel")
    if dump["schema"] != SCHEMA:
        raise RecordError(f"{file.name} has schema {dump['schema']}; this accel reads {SCHEMA}")
    if not 0 <= dump["rank"] < dump["world_size"]:
        raise RecordError(f"{file.name} says rank {dump['rank']} of {dump['world_size']}")
    return dump


def _has(plain: Any, fields: Mapping[str, type]) -> bool:
    return isinstance(plain, dict) and all(
        isinstance(plain.get(name), (kind, int) if kind is float else kind) for name, kind in fields.items()
    )


def _waits(entry: Mapping[str, Any]) -> bool:
    return entry.get("end") is None or entry["failed"] == _WAITED


def _groups(job: Job) -> list[str]:
    return list(dict.fromkeys(name for dump in job.dumps.values() for name in dump["groups"]))


def _members(job: Job, group: str) -> list[int]:
    return next(list(dump["groups"][group]) for dump in job.dumps.values() if group in dump["groups"])


def _last(entries: Iterable[dict[str, Any]], group: str) -> dict[str, Any] | None:
    """The latest entry of a group that counts its calls."""
    mine = [entry for entry in entries if entry["group"] == group and entry["number"]]
    return mine[-1] if mine else None


def _group(group: str, members: list[int], job: Job) -> list[str]:
    """Findings about one group: who waits at which number, and who has not come to it."""
    last = {rank: _last(job.dumps[rank]["entries"], group) for rank in members if rank in job.dumps}
    waiting = {rank: entry for rank, entry in last.items() if entry is not None and _waits(entry)}
    if not waiting:
        return []
    number = max(entry["number"] for entry in waiting.values())
    front = {rank: entry for rank, entry in waiting.items() if entry["number"] == number}
    calls: dict[str, list[int]] = {}
    for rank, entry in front.items():
        calls.setdefault(entry["call"], []).append(rank)
    if len(calls) > 1:
        sides = "; ".join(f"{named(ranks)}: {call}" for call, ranks in calls.items())
        return [f"ranks differ in number {number} of group {group!r}: {sides}"]
    first = next(iter(front.values()))
    what = f"{first['call']} number {number} of group {group!r} at {first['site']}"
    come = {rank: 0 if entry is None else int(entry["number"]) for rank, entry in last.items()}
    behind = [rank for rank, at in come.items() if at < number]
    absent = [rank for rank in members if rank not in job.dumps]
    lines = []
    for rank in [*behind, *absent]:
        where = _line(_place(rank, job), job)
        lines.append(f"rank {rank} is behind: it did not come to {what}. {named(sorted(front))} wait for it. {where}")
    if not lines and len(front) == len(members):
        lines.append(
            f"all ranks of group {group!r} are in {what}: none is behind, so the fabric itself does not finish, or a "
            "rank that had begun has died"
        )
    return lines


def _place(rank: int, job: Job) -> Place:
    """Where a rank was when it wrote its dump, or when the others last heard of it."""
    dump = job.dumps.get(rank)
    if dump is not None:
        entries = dump["entries"]
        if not entries:
            return Place(rank)
        entry = next((e for e in reversed(entries[-64:]) if _waits(e)), entries[-1])
        waits = _waits(entry)
        since = dump["time"] - entry["start"] if waits else None
        return Place(rank, entry["call"], entry["group"], entry["number"], entry["site"], waits, since)
    seen = [d["peers"][str(rank)] for d in job.dumps.values() if d["peers"].get(str(rank))]
    best: dict[str, Any] = max(seen, key=lambda state: state.get("beat", 0), default={})
    state = best.get("entry")
    if state is None:
        return Place(rank, dumped=False)
    return Place(
        rank, state["call"], state["group"], state["number"], state["site"], state["open"], best.get("quiet"), False
    )


def _line(place: Place, job: Job) -> str:
    call = told(
        {
            "call": place.call,
            "group": place.group,
            "number": place.number,
            "site": place.site,
            "open": place.waiting,
        }
        if place.call
        else None
    )
    if place.dumped:
        for_how_long = f", for {place.since:.1f} s" if place.since is not None else ""
        return f"rank {place.rank} was in {call}{for_how_long}"
    quiet = [d["peers"][str(place.rank)].get("quiet", 0.0) for d in job.dumps.values() if str(place.rank) in d["peers"]]
    silence = f", silent for {max(quiet):.1f} s" if quiet else ""
    return f"rank {place.rank} left no flight record: dead or frozen; others last saw it in {call}{silence}"


def _fabric(job: Job) -> list[str]:
    """What the fabric's own record (NCCL's flight recorder) has that is not over."""
    lines = []
    for rank, dump in job.dumps.items():
        record = dump.get("fabric")
        if not isinstance(record, dict):
            continue
        if "unreadable" in record:
            lines.append(f"rank {rank}: the fabric's own record could not be read: {record['unreadable']}")
        for entry in [e for e in record.get("entries", []) if isinstance(e, dict) and e.get("state") != "completed"]:
            sequence = entry.get("collective_seq_id", entry.get("p2p_seq_id", "?"))
            lines.append(
                f"rank {rank}: the fabric has {entry.get('profiling_name', '?')} number {sequence} "
                f"{entry.get('state', '?')}, sizes {entry.get('input_sizes', '?')}"
            )
    return lines
