"""What devices and hosts say of a run that had them not to itself."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

import accel
import accel_cpu.device
from accel.bench import _disturbance
from accel.bench._disturbance import Watcher, host_time, summarize
from accel.bench._overlap import figures
from accel.device import Disturbance


def rank(**changes: Any) -> dict[str, Any]:
    seen = {"host": "a", "throttled": 0.0, "causes": [], "processes": 1, "reasons": {}, "samples": 4}
    seen |= {"wait": 0.01}
    return {**seen, "time": [10.0, 18.0, 9.0], **changes}


def test_the_worst_rank_and_the_busiest_host_are_told() -> None:
    found = summarize(
        [
            rank(),
            rank(throttled=0.5, causes=["heat"], processes=3, samples=3),
            rank(host="b", time=[10.0, 30.0, 9.0]),
        ]
    )
    assert (found.samples.value, found.throttled.value, found.throttle_causes) == (3, 0.5, ("heat",))
    assert found.other_processes.value == 2  # the rank itself is the third
    assert found.other_load.value == pytest.approx(2.1)  # host b: 21 s of 10 s; host a: its two ranks took all 18 s
    alone = summarize([rank(), rank()])
    assert alone.other_load.value == 0
    assert summarize([rank(), rank(wait=0.3)]).cpu_wait.value == 0.3
    assert "keeps no statistics" in str(summarize([rank(), rank(wait=None)]).cpu_wait.reason)
    assert alone.other_processes.value == 0


def test_what_one_rank_does_not_know_is_unknown_with_its_reason() -> None:
    found = summarize([rank(), rank(throttled=None, processes=None, reasons={"throttled": "a MIG device"}, time=None)])
    assert found.throttled.reason == "a MIG device"
    assert found.other_processes.reason == "it was told at some moments only"
    assert "no /proc" in str(found.other_load.reason)
    assert "less time than the ranks" in str(summarize([rank(time=[10.0, 1.0, 9.0])]).other_load.reason)


def _burn(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_the_time_of_children_is_the_runs_own() -> None:
    before = host_time()
    assert before is not None
    child = multiprocessing.get_context("spawn").Process(target=_burn, args=(0.5,))
    child.start()
    child.join(60)
    after = host_time()
    assert after is not None
    assert after.own - before.own >= 0.4
    assert after.busy - before.busy >= 0.4


def test_a_thread_that_has_to_share_its_core_is_seen_to_wait() -> None:
    usable = os.sched_getaffinity(0)
    before = host_time()
    os.sched_setaffinity(0, {min(usable)})
    try:
        child = multiprocessing.get_context("spawn").Process(target=_burn, args=(1.0,))
        child.start()  # it inherits the one core
        while child.is_alive():
            pass
    finally:
        os.sched_setaffinity(0, usable)
    wait = _disturbance._wait(before, host_time())
    assert wait is not None
    assert 0.05 < wait <= 1


def test_a_host_without_proc_tells_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_disturbance, "PROC", tmp_path)
    assert host_time() is None


def test_heat_that_the_kernel_counts_during_a_run_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(accel_cpu.device, "THERMAL", tmp_path)
    counters = tmp_path / "cpu0" / "thermal_throttle"
    counters.mkdir(parents=True)
    (counters / "core_throttle_count").write_text("5\n")
    (counters / "package_throttle_count").write_text("7\n")
    now = [0.0]
    with accel.init(backend="cpu") as session:
        watcher = Watcher(session, lambda: now[0])
        watcher.ask()  # it has not begun
        watcher.start()
        now[0] = 0.5
        watcher.ask()  # that was a moment ago
        (counters / "core_throttle_count").write_text("6\n")
        now[0] = 2.0
        watcher.start()  # it has begun
        watcher.ask()
        found = watcher.figures()
        assert (found.samples.value, found.throttled.value, found.throttle_causes) == (2, 0.5, ("heat",))
        assert "every process of a host" in str(found.other_processes.reason)


def test_a_host_that_counts_no_heat_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(accel_cpu.device, "THERMAL", tmp_path)
    with accel.init(backend="cpu") as session:
        found: Disturbance = session.backend.device.disturbance()
        assert found.throttled is None
        assert str(tmp_path) in found.reasons["throttled"]


@pytest.mark.parametrize(
    ("both", "hidden"), [(1.0, 1.0), (1.2, 0.5), (1.4, 0.0), (2.0, 0.0), (0.9, 1.0)]
)  # noise may go beyond either end
def test_overlap_is_the_share_of_the_reduction_that_backward_hides(both: float, hidden: float) -> None:
    found = figures(1.0, both, 0.4)
    assert found["backward_alone_time"].value == 1.0
    assert found["reduce_overlap"].value == pytest.approx(hidden)


def test_without_the_reduction_alone_there_is_no_overlap() -> None:
    assert figures(1.0, 1.0, 0.0)["reduce_overlap"].reason == "the reduction alone is not known"
