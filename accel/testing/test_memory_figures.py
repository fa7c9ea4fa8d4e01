"""Contract of every memory figure: where it comes from or why there is none, what it follows, and measured blocks."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from accel.errors import ArgumentError
from accel.memory import DEFINITIONS, FIELDS, STILL_OPEN
from accel.testing.test_memory import MIB, mebibytes, needs


@pytest.mark.parametrize("figure", FIELDS)
def test_a_figure_has_a_value_and_a_source_or_a_reason(backend: Any, figure: str) -> None:  # T48
    stats = backend.memory.stats()
    value = getattr(stats, figure)
    assert DEFINITIONS[figure]
    if value is None:
        assert len(stats.reasons[figure]) > 20
        return
    assert figure not in stats.reasons
    assert isinstance(value, int)
    assert value >= 0
    assert backend.memory.sources[figure]


def test_figures_are_in_the_order_that_their_meaning_gives(backend: Any) -> None:  # T48
    kept = mebibytes(backend, 2)
    backend.device.synchronize()
    stats = backend.memory.stats()
    for less, more in (
        ("allocated", "reserved"),
        ("allocated", "peak_allocated"),
        ("reserved", "peak_reserved"),
        ("peak_allocated", "peak_reserved"),
        ("free", "total"),
        ("reserved", "total"),
    ):
        if getattr(stats, less) is not None and getattr(stats, more) is not None:
            assert getattr(stats, less) <= getattr(stats, more), (less, more)
    assert kept.numel() == 2 * MIB


@pytest.mark.parametrize("index", [-1, 10_000, True, "0"])
def test_an_index_out_of_range_is_refused(backend: Any, index: Any) -> None:  # T48
    with pytest.raises(ArgumentError, match="index"):
        backend.memory.stats(index)
    with pytest.raises(ArgumentError, match="index"), backend.memory.track(index):
        pass


def test_each_device_has_figures_of_its_own(backend: Any) -> None:  # T48
    needs(backend, "memory.allocated")
    if backend.device.count() < 2:
        pytest.skip(f"needs two devices; backend {backend.name!r} shows 1 to this process")
    before = [backend.memory.stats(index).allocated for index in range(2)]
    kept = torch.ones(4 * MIB, dtype=torch.uint8, device=torch.device(backend.device.type, 1))
    after = [backend.memory.stats(index).allocated for index in range(2)]
    assert after[0] == before[0]
    assert after[1] - before[1] >= kept.numel()


def test_a_block_gives_its_peak_and_its_change_or_says_why_not(backend: Any) -> None:
    with backend.memory.track() as tracked:
        kept = mebibytes(backend, 2)
        mebibytes(backend, 8)
        assert tracked.peak is None
        assert tracked.reasons["peak"] == STILL_OPEN
    assert kept.numel() == 2 * MIB
    if not backend.capabilities().offers("memory.track"):
        assert tracked.peak is None
        assert tracked.change is None
        assert len(tracked.reasons["peak"]) > 20
        return
    assert 2 * MIB <= tracked.change < 3 * MIB
    assert tracked.peak is not None
    assert tracked.peak >= 10 * MIB
    assert "peak" not in tracked.reasons
    assert "change" not in tracked.reasons


def test_blocks_and_the_users_peak_do_not_disturb_each_other(backend: Any) -> None:
    needs(backend, "memory.track")
    needs(backend, "memory.peak_reset")
    with backend.memory.track() as outer:
        mebibytes(backend, 32)
        base = backend.memory.stats().allocated
        with backend.memory.track() as inner:
            mebibytes(backend, 4)
            backend.memory.reset_peak()  # the user's own: no block forgets for it
            mebibytes(backend, 2)
        users = backend.memory.stats().peak_allocated
    assert inner.peak >= 4 * MIB
    assert outer.peak - inner.peak >= 24 * MIB
    assert users - base < 3 * MIB
    assert inner.change == outer.change == 0


def test_a_block_that_raises_is_measured_all_the_same(backend: Any) -> None:
    needs(backend, "memory.track")
    blocks = []

    def fails() -> None:
        with backend.memory.track() as tracked:
            blocks.append(tracked)
            mebibytes(backend, 3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    (tracked,) = blocks
    assert tracked.peak >= 3 * MIB
    assert tracked.change == 0


def test_live_bytes_are_a_number_inside_a_block(backend: Any) -> None:
    needs(backend, "memory.track")
    with backend.memory.track():
        before = backend.memory.stats().allocated
        kept = mebibytes(backend, 5)
        stats = backend.memory.stats()
        assert 5 * MIB <= stats.allocated - before < 6 * MIB
        assert stats.peak_allocated >= stats.allocated
        del kept
        assert backend.memory.stats().allocated == before


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (torch.OutOfMemoryError("Tried to allocate 20.00 MiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.97 GiB total capacity)"), True),
        (
            RuntimeError("RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in hbm"),
            True,
        ),
        (RuntimeError("RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 4.00G."), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
        (KeyError("RESOURCE_EXHAUSTED"), False),
    ],
)
def test_every_vendors_words_for_out_of_memory_are_known(backend: Any, error: Exception, meaning: bool) -> None:  # T49
    assert backend.memory.is_oom(error) is meaning


def test_the_summary_names_every_figure_with_its_source_or_reason(backend: Any) -> None:  # T48
    text = backend.memory.summary()
    stats = backend.memory.stats()
    for figure in FIELDS:
        (line,) = [line for line in text.splitlines() if line.startswith(f"{figure} ")]
        assert ("unknown" in line) is (getattr(stats, figure) is None)
    with pytest.raises(ArgumentError, match="index"):
        backend.memory.summary(10_000)


def test_a_snapshot_opens_in_torchs_memory_visualiser(backend: Any, tmp_path: Any) -> None:
    needs(backend, "memory.snapshot")
    from torch.cuda import _memory_viz

    backend.memory.record_history()
    try:
        kept = mebibytes(backend, 3)
        backend.memory.snapshot(tmp_path / "memory.pickle")
    finally:
        backend.memory.record_history(enabled=False)
    found = pickle.loads((tmp_path / "memory.pickle").read_bytes())  # noqa: S301 - a file that this test has written
    assert "MemoryViz" in _memory_viz.trace_plot(found)
    sizes = [entry["size"] for trace in found["device_traces"] for entry in trace if entry["action"] == "alloc"]
    assert any(kept.numel() <= size < kept.numel() + MIB for size in sizes), sizes
