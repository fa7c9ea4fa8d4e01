"""What makes a run no fair match for its group's baseline, in words; nothing here changes a figure.

Fields that part groups (batch, precision policy, data, origin) are `_groups`'; here is what a group allows to differ
and a reader should weigh: the arithmetic in force, how the step was executed, the age of the software, the input
pipeline, and signs of a machine that was not the run's own: what it said itself, and what step times show.
"""

from __future__ import annotations

from itertools import pairwise

from packaging.version import InvalidVersion, Version

from accel.records import Record

WIDE = 1.5  # p90 of the step times over p10: twice what an idle machine shows for any backend here
WAITING = 0.1  # of the timed steps spent waiting for data, from which the input is said to set the pace
BUSY = 0.1  # of the cores that a run was given, and QUIET cores: what others may take of a host unsaid
QUIET = 0.2
TAKEN = 0.05  # of the time in which a thread of the run had no core, where the record tells it
AT_WORK = ("power limit",)  # a chip at work may be held at its power limit: that is the chip
SLOWING = 0.03  # of the throughput, from the first repeat to the last, each slower than the one before


def cautions(record: Record, baseline: Record | None) -> list[str]:
    """One line each; `baseline` is None for a group's baseline itself."""
    lines = [*_machine(record)]
    if baseline is not None:
        lines += _unlike(record, baseline)
    return lines


def _unlike(record: Record, baseline: Record) -> list[str]:
    lines = []
    own, base = record.numerics.in_force, baseline.numerics.in_force
    for name, what in (("arithmetic", "matrix products in"), ("execution", "the step ran as")):
        if own.get(name) != base.get(name) and name in own and name in base:
            lines.append(f"{what} {own[name]}, the baseline's {base[name]}")
    lines += _ages(record, baseline)
    if record.protocol.loader_workers.value != baseline.protocol.loader_workers.value and not _synthetic(record):
        workers = record.protocol.loader_workers.words(), baseline.protocol.loader_workers.words()
        lines.append(f"{workers[0]} load data, the baseline's {workers[1]}")
    if record.backend.name == baseline.backend.name and record.protocol.threads != baseline.protocol.threads:
        threads = record.protocol.threads.words(), baseline.protocol.threads.words()
        lines.append(f"{threads[0]} a rank, the baseline {threads[1]}")
    return lines


def _ages(record: Record, baseline: Record) -> list[str]:
    """A version of torch that is another minor than the baseline's: its kernels are others."""
    versions = record.versions.get("torch"), baseline.versions.get("torch")
    try:
        own, base = (Version(text).release[:2] for text in versions if text is not None)
    except (InvalidVersion, ValueError):
        return []
    if own == base:
        return []
    return [f"{'older' if own < base else 'newer'} software: torch {versions[0]}, the baseline's {versions[1]}"]


def _machine(record: Record) -> list[str]:
    lines = []
    low, high = record.results.step_time_p10.value, record.results.step_time_p90.value
    if low and high and high > WIDE * low:
        lines.append(
            f"a step in ten took {high / low:.1f} times as long as another: other processes on the machine, "
            "throttling, or an input pipeline that does not keep up"
        )
    repeats = record.results.throughput_repeats.values
    falling = len(repeats) > 2 and all(after < before for before, after in pairwise(repeats))
    if falling and repeats[-1] < (1 - SLOWING) * repeats[0]:
        drop = 1 - repeats[-1] / repeats[0]
        lines.append(f"each repeat was slower than the one before, {drop:.0%} in all: throttling or a filling machine")
    return lines + _disturbed(record)


def _disturbed(record: Record) -> list[str]:
    """What the devices and hosts themselves said while the run went on."""
    lines = []
    found, share = record.disturbance, record.results.data_share.value
    if share and share > WAITING:
        lines.append(
            f"waited for data {share:.0%} of the time: its input, not the device, sets the pace; "
            "`accel bench --tune-input` tries numbers of workers"
        )
    if found is None:
        return lines
    causes = [cause for cause in found.throttle_causes if cause not in AT_WORK]
    if causes and found.throttled.value:
        lines.append(f"clocks were held down for {', '.join(causes)} (in {found.throttled.value:.0%} of the samples)")
    if found.other_processes.value:
        lines.append(f"{found.other_processes.words()} besides its ranks computed on a device of the run")
    load, wait = found.other_load.value, found.cpu_wait.value
    if load and (load > max(QUIET, BUSY * _cores(record)) if wait is None else wait > TAKEN):
        cost = "" if wait is None else f"; for {wait:.0%} of the time a thread of the run stood ready and had no core"
        lines.append(f"other processes kept {load:.2g} of a host's cores busy during the timed steps{cost}")
    return lines


def _cores(record: Record) -> float:
    """Cores of one host that the run was given."""
    figures = record.protocol.threads, record.hardware.world_size, record.hardware.hosts
    threads, ranks, hosts = (figure.value or 0 for figure in figures)
    return threads * ranks / hosts if hosts else 0.0


def _synthetic(record: Record) -> bool:
    return record.workload.delivery == "synthetic"
