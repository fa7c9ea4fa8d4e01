"""Contract of allocators: figures that follow what is allocated, limits, history, recovery, and copies ahead of use."""

from __future__ import annotations

import pickle
import weakref
from typing import Any, NamedTuple

import pytest
import torch

from accel.capabilities import Support
from accel.errors import ArgumentError, UnsupportedError

MIB = 1 << 20


def needs(backend: Any, feature: str) -> None:
    if not backend.capabilities().offers(feature):
        cell = backend.capabilities().get(feature)
        pytest.skip(f"unsupported by the capability table: {cell.why if cell else f'{feature} is not listed'}")


def mebibytes(backend: Any, count: int) -> torch.Tensor:
    return torch.ones(count * MIB, dtype=torch.uint8, device=backend.device.torch_device)


def test_live_bytes_follow_what_is_allocated_and_peaks_stay(backend: Any) -> None:  # T48
    needs(backend, "memory.allocated")
    backend.device.synchronize()
    before = backend.memory.stats()
    kept = mebibytes(backend, 16)
    held = backend.memory.stats()
    assert 16 * MIB <= held.allocated - before.allocated < 18 * MIB
    assert held.peak_allocated >= held.allocated
    del kept
    after = backend.memory.stats()
    assert after.allocated == before.allocated
    assert after.peak_allocated >= before.allocated + 16 * MIB


def test_peaks_start_anew_at_the_live_bytes(backend: Any) -> None:  # T48
    needs(backend, "memory.allocated")
    needs(backend, "memory.peak_reset")
    kept = mebibytes(backend, 4)
    mebibytes(backend, 16)
    backend.memory.reset_peak()
    stats = backend.memory.stats()
    assert stats.peak_allocated == stats.allocated >= kept.numel()
    assert stats.peak_reserved == stats.reserved


def test_a_retry_after_out_of_memory_finds_the_failed_tensors_gone(backend: Any) -> None:  # T49
    needs(backend, "device.stream")  # a lazy device allocates when its graph runs, not at the line that asks
    died: list[weakref.ref[torch.Tensor]] = []

    def attempt(size: int) -> int:
        held = mebibytes(backend, 1)
        died.append(weakref.ref(held))
        if size > 1:
            torch.empty(2**60, dtype=torch.uint8, device=backend.device.torch_device)
            backend.device.synchronize()
        return size

    size, done = 2, None
    while done is None:
        try:
            done = attempt(size)
        except (RuntimeError, MemoryError) as error:
            if not backend.memory.is_oom(error):
                raise
            failed = True
        else:
            failed = False
        if failed:  # outside the except clause: the traceback, which holds the failed call's tensors, is gone by now
            assert died[-1]() is None
            backend.memory.empty_cache()
            size //= 2
    assert (size, done) == (1, 1)


def test_a_limit_is_kept_and_lifted_or_refused(backend: Any) -> None:
    if not backend.capabilities().offers("memory.limit"):
        with pytest.raises(UnsupportedError):
            backend.memory.limit(0.5)
        return
    for bad in (0, -1, 1.5, True, "0.5"):
        with pytest.raises(ArgumentError, match="limit"):
            backend.memory.limit(bad)
    with pytest.raises(ArgumentError, match="index"):
        backend.memory.limit(0.5, index=10_000)
    backend.memory.empty_cache()
    stats = backend.memory.stats()
    room = min(0.5, (stats.reserved + 64 * MIB) / stats.total)
    backend.memory.limit(room)
    try:
        with pytest.raises(RuntimeError) as caught:
            mebibytes(backend, int(room * stats.total) // MIB + 64)
        assert backend.memory.is_oom(caught.value)
    finally:
        backend.memory.limit(1.0)
    assert mebibytes(backend, 1).numel() == MIB


def test_a_snapshot_holds_the_history_since_recording_began_or_is_refused(backend: Any, tmp_path: Any) -> None:
    if backend.capabilities()["memory.snapshot"].support is Support.UNSUPPORTED:
        with pytest.raises(UnsupportedError):
            backend.memory.record_history()
        return
    backend.memory.record_history()
    try:
        kept = mebibytes(backend, 8)
        backend.memory.snapshot(tmp_path / "memory.pickle")
    finally:
        backend.memory.record_history(enabled=False)
    found = pickle.loads((tmp_path / "memory.pickle").read_bytes())  # noqa: S301 - a file that this test has written
    sizes = [entry["size"] for trace in found["device_traces"] for entry in trace if entry["action"] == "alloc"]
    assert any(kept.numel() <= size < kept.numel() + MIB for size in sizes), sizes
    with pytest.raises(ArgumentError, match="its folder does not exist"):
        backend.memory.snapshot(tmp_path / "absent" / "memory.pickle")


class Pair(NamedTuple):
    x: torch.Tensor
    note: str


@pytest.mark.parametrize("pinned", [False, True])
def test_batches_copied_ahead_arrive_whole_and_in_order(backend: Any, start: Any, pinned: bool) -> None:
    if pinned:
        needs(backend, "memory.pinned")
    session = start()
    hosts = [torch.full((64, 1024), float(i)) for i in range(6)]
    batches = [Pair(t.pin_memory() if pinned else t, str(i)) for i, t in enumerate(hosts)]
    total = torch.zeros((), device=session.device)
    seen = []
    for pair in session.batches(batches, prefetch=3):
        assert pair.x.device.type == session.device.type
        for _ in range(4):  # work queued on the computing stream while later batches arrive
            total = total + pair.x.mean()
        seen.append((pair.note, pair.x))
    assert [(note, x.unique().tolist()) for note, x in seen] == [(str(i), [float(i)]) for i in range(6)]
    assert total.item() == 4 * sum(range(6))
