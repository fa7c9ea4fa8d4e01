"""Whether the devices and hosts of a run were its own and at full clock, asked of them while it goes on.

Devices are asked between timed steps, when the clock stands, once a second at most. The load of other processes is what
the host's cores did during the timed part less what the ranks, their loader workers among them, took of it; time that a
hypervisor gave to another machine counts as others'. What that cost the run is asked of the scheduler: how long its
threads stood ready and had no core.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from accel.records import Disturbance, Figure

if TYPE_CHECKING:
    from accel.session import Session

PROC = Path("/proc")
EVERY = 1.0  # s between two questions
_BUSY = (0, 1, 2, 5, 6, 7)  # of /proc/stat's columns: user, nice, system, irq, softirq, steal; guests are in user
_STEAL = 7


class HostTime(NamedTuple):
    """Seconds: of a clock, of all cores of the host at work, and of this process and its descendants; of the cores that
    a hypervisor kept; and by thread of this process, how long it stood ready without a core.
    """

    at: float
    busy: float
    own: float
    stolen: float
    waited: dict[str, float]


def host_time(clock: Callable[[], float] = time.perf_counter) -> HostTime | None:
    """The host's time at this moment; None without /proc, as outside Linux."""
    tick = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0
    try:
        columns = (PROC / "stat").read_text().splitlines()[0].split()[1:]
        busy = sum(int(columns[index]) for index in _BUSY)
        own = _own_ticks(os.getpid())
        return HostTime(clock(), busy / tick, own / tick, int(columns[_STEAL]) / tick, _waits())
    except (OSError, ValueError, IndexError):
        return None


def _waits() -> dict[str, float]:
    """Seconds that each thread of this process stood in a run queue; empty where the scheduler keeps no statistics."""
    found = {}
    for folder in (PROC / "self" / "task").iterdir():
        try:
            found[folder.name] = int((folder / "schedstat").read_text().split()[1]) / 1e9
        except (OSError, ValueError, IndexError):  # it ended meanwhile, or a kernel without CONFIG_SCHED_INFO
            continue
    return found


def _own_ticks(pid: int) -> int:
    """CPU ticks of `pid`, of its descendants that live, and of children that have ended."""
    parents: dict[int, list[int]] = {}
    ticks: dict[int, int] = {}
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        parents.setdefault(int(fields[1]), []).append(int(folder.name))
        ticks[int(folder.name)] = sum(map(int, fields[11:15]))  # utime, stime, and those of children waited for
    family, todo = 0, [pid]
    while todo:
        one = todo.pop()
        family += ticks.get(one, 0)
        todo += parents.get(one, [])
    return family


class Watcher:
    """Asks this rank's device and host; `start`, then `ask` between steps, then `figures` on every rank."""

    def __init__(self, session: Session, clock: Callable[[], float] = time.perf_counter) -> None:
        self._session = session
        self._clock = clock
        self._asked: list[Any] = []
        self._last = 0.0
        self._begun: HostTime | None = None
        self._on = False

    def start(self) -> None:
        """The timed part begins; not again when it has begun."""
        if not self._on:
            self._on = True
            self._begun = host_time(self._clock)
            self._session.backend.device.disturbance()  # what was before does not count
            self._last = self._clock()

    def ask(self) -> None:
        """Ask the device, unless that was a moment ago."""
        if self._on and self._clock() - self._last >= EVERY:
            self._sample()

    def _sample(self) -> None:
        self._asked.append(self._session.backend.device.disturbance())
        self._last = self._clock()

    def figures(self) -> Disturbance:
        """What was seen on all ranks; every rank must call it."""
        ended = host_time(self._clock)
        self._sample()
        mine = {
            "host": socket.gethostname(),
            "throttled": _throttled(self._asked),
            "causes": sorted({cause for one in self._asked for cause in one.throttled or ()}),
            "processes": None
            if any(one.processes is None for one in self._asked)
            else max(one.processes for one in self._asked),
            "reasons": self._asked[-1].reasons,
            "samples": len(self._asked),
            "wait": _wait(self._begun, ended),
            "time": None
            if ended is None or self._begun is None
            else [b - a for a, b in zip(self._begun[:3], ended[:3], strict=True)],
        }
        return summarize(self._session.backend.collective.all_gather_object(mine))


def _throttled(asked: list[Any]) -> float | None:
    if any(one.throttled is None for one in asked):
        return None
    return sum(bool(one.throttled) for one in asked) / len(asked)


def summarize(ranks: list[dict[str, Any]]) -> Disturbance:
    """The figures of a run from what each of its ranks saw."""

    def worst(name: str, unit: str, less: int = 0) -> Figure:
        values = [rank[name] for rank in ranks]
        if None in values:
            reasons = ranks[values.index(None)]["reasons"]
            return Figure(None, unit, reason=reasons.get(name) or "it was told at some moments only")
        return Figure(max(values) - less, unit)

    return Disturbance(
        samples=Figure(min(rank["samples"] for rank in ranks), "samples"),
        throttled=worst("throttled", "fraction"),
        throttle_causes=tuple(sorted({cause for rank in ranks for cause in rank["causes"]})),
        other_processes=worst("processes", "processes", less=1),
        other_load=_others(ranks),
        cpu_wait=_waited(ranks),
    )


def _wait(begun: HostTime | None, ended: HostTime | None) -> float | None:
    """The share of the time that the thread which waited most had no core, and what a hypervisor kept of all cores."""
    if begun is None or ended is None or not ended.waited or ended.at <= begun.at:
        return None
    wall = ended.at - begun.at
    waited = max(seconds - begun.waited.get(thread, 0.0) for thread, seconds in ended.waited.items()) / wall
    return min(1.0, waited + (ended.stolen - begun.stolen) / wall / (os.cpu_count() or 1))


def _waited(ranks: list[dict[str, Any]]) -> Figure:
    waits = [rank["wait"] for rank in ranks]
    if None in waits:
        return Figure(None, "fraction", reason="the kernel keeps no statistics of how long threads wait for a core")
    return Figure(max(waits), "fraction")


def _others(ranks: list[dict[str, Any]]) -> Figure:
    hosts: dict[str, list[dict[str, Any]]] = {}
    for rank in ranks:
        hosts.setdefault(rank["host"], []).append(rank)
    loads = []
    for members in hosts.values():
        load = _load(members)
        if isinstance(load, str):
            return Figure(None, "cores", reason=load)
        loads.append(load)
    return Figure(max(loads), "cores")


def _load(ranks: list[dict[str, Any]]) -> float | str:
    """Cores of the host of `ranks` that others kept busy, or why that is not known."""
    times = [rank["time"] for rank in ranks]
    if None in times:
        return "the operating system has no /proc that tells the time of its cores"
    wall, busy = (max(column) for column in list(zip(*times, strict=True))[:2])
    own = sum(time[2] for time in times)
    if wall <= 0 or busy < own / 2:  # /proc of another kernel than the one that runs the ranks
        return "/proc/stat counts less time than the ranks themselves have taken"
    return float(max(0.0, busy - own) / wall)
