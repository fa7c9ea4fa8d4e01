from __future__ import annotations

import functools
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel.bench import collectives
from accel.bench._timing import MAX_EXTENSION, SETTLE, RankTiming, measure, rate, summarize
from accel.errors import ClockError


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class QueueDevice:
    """Operations return at once; `synchronize` waits for what was queued. A lazy one runs nothing before `flush`."""

    def __init__(self, clock: FakeClock, lazy: bool = False) -> None:
        self.clock = clock
        self.lazy = lazy
        self.recorded = 0.0
        self.queued = 0.0
        self.compiles = 0
        self.fallbacks = 0
        self.calls: list[str] = []

    def launch(self, seconds: float) -> None:
        self.calls.append("launch")
        if self.lazy:
            self.recorded += seconds
        else:
            self.queued += seconds

    def flush(self) -> None:
        self.queued += self.recorded
        self.recorded = 0.0

    def synchronize(self) -> None:
        self.calls.append("synchronize")
        self.clock.now += self.queued
        self.queued = 0.0

    def counters(self) -> dict[str, int]:
        return {"compiles": self.compiles, "fallbacks": self.fallbacks}


@pytest.mark.parametrize("lazy", [False, True])
def test_a_collective_is_timed_until_it_has_run(lazy: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # T28
    clock = FakeClock()
    device = QueueDevice(clock, lazy)
    monkeypatch.setattr(collectives.time, "perf_counter", clock)
    bench = object.__new__(collectives._Bench)  # only its clock and its device take part
    bench._device = device  # type: ignore[assignment]
    device.launch(5.0)  # what was left over
    assert bench._block(lambda: device.launch(0.020), 10) == pytest.approx(0.020)


@pytest.mark.parametrize("lazy", [False, True])
def test_step_time_is_the_work_and_not_its_launch(lazy: bool) -> None:  # T28
    clock = FakeClock()
    device = QueueDevice(clock, lazy)

    def step() -> int:
        device.launch(0.020)
        return 32

    summary = summarize([measure(step, device, steps=10, repeats=1, warmup=1, clock=clock)])
    assert summary.step_times == pytest.approx([0.020] * 10)
    assert summary.throughput == pytest.approx(32 / 0.020)


def test_work_left_over_is_finished_before_the_clock_starts() -> None:  # T28
    clock = FakeClock()
    device = QueueDevice(clock)

    def step() -> int:
        device.launch(0.010)
        return 1

    def read_loss() -> None:
        device.launch(5.0)

    timing = measure(step, device, steps=3, repeats=2, warmup=1, between=read_loss, clock=clock)
    assert timing.seconds == [pytest.approx([0.010] * 3)] * 2
    first = device.calls.index("launch")
    assert device.calls[first - 1] == "synchronize"
    assert device.calls[first + 1] == "synchronize"


def test_warm_up_goes_on_until_nothing_compiles_and_compilation_is_apart() -> None:  # T29
    clock = FakeClock()
    device = QueueDevice(clock, lazy=True)
    calls = 0

    def step() -> int:
        nonlocal calls
        calls += 1
        if calls <= 2:
            device.compiles += 1
            clock.now += 0.050
        device.launch(0.005)
        return 8

    timing = measure(step, device, steps=4, repeats=2, warmup=1, clock=clock)
    summary = summarize([timing])
    assert summary.warmup_steps == 4  # two that compile, one that is shorter, one that is not
    assert summary.step_times == pytest.approx([0.005] * 8)
    assert summary.compile_time == pytest.approx(0.100)
    assert summary.first_step_time == pytest.approx(0.055)
    assert summary.warnings == []


def test_compilation_that_never_ends_or_comes_back_is_a_warning() -> None:  # T29
    clock = FakeClock()
    device = QueueDevice(clock)

    def step() -> int:
        device.compiles += 1
        device.fallbacks += 2
        device.launch(0.005)
        return 8

    timing = measure(step, device, steps=2, repeats=1, warmup=2, clock=clock)
    assert len(timing.warmup) == 2 + MAX_EXTENSION
    still, during, host = timing.warnings
    assert "still compiled after 52 warm-up steps" in still
    assert "during 2 timed steps" in during
    assert "4 operations of the timed steps ran on the host" in host


def test_one_rank_that_compiles_extends_the_warm_up_of_all() -> None:  # T29
    clock = FakeClock()
    device = QueueDevice(clock)
    others = iter([True, False, True, False])  # compiled, falling; compiled, falling; ...

    def step() -> int:
        device.launch(0.005)
        return 8

    def any_rank(mine: bool) -> bool:
        return next(others, False) or mine

    timing = measure(step, device, steps=1, repeats=1, warmup=1, settle=0, any_rank=any_rank, clock=clock)
    assert len(timing.warmup) == 3
    assert timing.compiling == []


def test_warm_up_goes_on_until_the_step_time_is_still() -> None:
    clock = FakeClock()
    device = QueueDevice(clock)
    times = iter([0.9, 0.5, 0.3, 0.2, 0.1, 0.101, *[0.1] * 20])

    def step() -> int:
        device.launch(next(times))
        return 8

    timing = measure(step, device, steps=4, repeats=2, warmup=2, clock=clock)
    assert timing.warmup == pytest.approx([0.9, 0.5, 0.3, 0.2, 0.1, 0.101])
    assert timing.seconds == [pytest.approx([0.1] * 4)] * 2
    assert timing.warnings == []


@pytest.mark.parametrize(("settle", "steps"), [(SETTLE, 2 + SETTLE), (0, 2)])
def test_a_step_time_that_is_never_still_is_a_warning(settle: int, steps: int) -> None:
    clock = FakeClock()
    device = QueueDevice(clock)
    times = (0.5**count for count in itertools.count())

    def step() -> int:
        device.launch(next(times))
        return 8

    timing = measure(step, device, steps=1, repeats=1, warmup=2, settle=settle, clock=clock)
    assert len(timing.warmup) == steps
    (said,) = timing.warnings
    assert f"the step time was not still after {steps} warm-up steps: the last took" in said


def test_one_rank_whose_step_time_falls_extends_the_warm_up_of_all() -> None:
    clock = FakeClock()
    device = QueueDevice(clock)
    others = iter([False, True, False, True, False, False])  # compiled, falling; compiled, falling; ...

    def step() -> int:
        device.launch(0.005)
        return 8

    def any_rank(mine: bool) -> bool:
        return next(others, False) or mine

    timing = measure(step, device, steps=1, repeats=1, warmup=2, any_rank=any_rank, clock=clock)
    assert len(timing.warmup) == 3
    assert timing.warnings == []


def test_one_step_does_not_show_that_the_step_time_is_still() -> None:
    clock = FakeClock()
    device = QueueDevice(clock)

    def step() -> int:
        device.launch(0.005)
        return 8

    assert len(measure(step, device, steps=1, repeats=1, warmup=1, clock=clock).warmup) == 2
    fixed = measure(step, device, steps=1, repeats=1, warmup=1, settle=0, clock=clock)
    assert fixed.warnings == ["one warm-up step does not show whether the step time is still; warm up for longer"]


def test_ranks_start_every_repeat_together() -> None:
    clock = FakeClock()
    device = QueueDevice(clock)
    log: list[str] = []

    def step() -> int:
        device.launch(1.0)
        log.append("step")
        return 1

    barrier = functools.partial(log.append, "barrier")
    measure(step, device, steps=2, repeats=2, warmup=1, settle=0, barrier=barrier, clock=clock)
    assert log == ["step", "barrier", "step", "step", "barrier", "step", "step"]


seconds = st.floats(1e-6, 1e4)


@settings(deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.integers(1, 512))
def test_throughput_is_all_images_over_the_slowest_ranks_time(
    data: st.DataObject, world: int, repeats: int, steps: int, batch: int
) -> None:
    row = st.lists(seconds, min_size=steps, max_size=steps)
    rank_rows = st.lists(row, min_size=repeats, max_size=repeats)
    times = data.draw(st.lists(rank_rows, min_size=world, max_size=world))
    ranks = []
    for rank_times in times:
        clock = FakeClock()
        clock.now = 0.0
        device = QueueDevice(clock)
        durations = iter([1.0, 1.0, *(t for row in rank_times for t in row)])

        def step(device: QueueDevice = device, durations: object = durations) -> int:
            device.launch(next(durations))  # type: ignore[call-overload]
            return batch

        ranks.append(measure(step, device, steps=steps, repeats=repeats, warmup=2, clock=clock))
    summary = summarize(ranks)
    for index, throughput in enumerate(summary.throughput_repeats):
        slowest = max(sum(rank_times[index]) for rank_times in times)
        assert throughput == pytest.approx(world * batch * steps / slowest, rel=1e-4)
    assert min(summary.throughput_repeats) <= summary.throughput <= max(summary.throughput_repeats)
    assert len(summary.step_times) == repeats * steps
    assert summary.step_time_p10 <= summary.step_time <= summary.step_time_p90
    assert summary.compile_time is None


def test_images_are_counted_where_the_last_window_is_smaller() -> None:
    timing = RankTiming([[1.0, 1.0]], [[64, 32]], [1.0], [], [])
    assert summarize([timing]).throughput == 48.0


def test_warnings_name_their_rank() -> None:
    timing = RankTiming([[1.0]], [[1]], [1.0], [], ["slow"])
    assert summarize([timing, timing]).warnings == ["rank 0: slow", "rank 1: slow"]


def test_a_clock_that_stands_still_is_an_error() -> None:
    with pytest.raises(ClockError, match="did not advance"):
        rate(32, 0.0)


@pytest.mark.parametrize(("by", "said"), [(0.0, "did not advance"), (-2.0, "went backwards")])
def test_a_clock_that_goes_wrong_around_one_step_is_an_error_and_no_figure(by: float, said: str) -> None:
    clock = FakeClock()
    device = QueueDevice(clock)
    moves = iter([1.0, 1.0, 1.0, by])

    def step() -> int:
        clock.now += next(moves)
        return 8

    with pytest.raises(ClockError, match=f"a step of 8 images took {by} s: the clock {said}"):
        measure(step, device, steps=5, repeats=1, warmup=2, clock=clock)
