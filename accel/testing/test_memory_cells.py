"""Contract of the cells of docs/tables/memory.md that other modules leave open: each follows what happens, or says no.

`COVERED` names a test for every row; a row without one fails.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

import accel
from accel.errors import UnsupportedError
from accel.footprint import KINDS, Recorder
from accel.memory import FIELDS
from accel.testing import test_batch_size, test_memory, test_memory_figures
from accel.testing.planned import Case
from accel.testing.test_memory import MIB, mebibytes, needs

LARGE = 64  # MiB


def test_reserved_bytes_follow_what_is_held_and_their_peak_stays(backend: Any) -> None:  # T48
    """On a CPU the resident set: the C library gives so large a block back at once."""
    needs(backend, "memory.reserved")
    gc.collect()
    backend.memory.empty_cache()
    before = backend.memory.stats()
    kept = mebibytes(backend, LARGE)
    backend.device.synchronize()
    held = backend.memory.stats()
    assert held.reserved - before.reserved >= 0.9 * LARGE * MIB
    assert held.peak_reserved >= held.reserved
    del kept
    backend.memory.empty_cache()
    after = backend.memory.stats()
    assert after.reserved <= held.reserved - 0.9 * LARGE * MIB
    assert after.peak_reserved >= held.reserved - MIB  # Linux counts resident pages of each core in batches


def test_free_bytes_fall_by_what_the_allocator_takes_from_the_device(backend: Any) -> None:  # T48
    """Where the device's memory is this process's own to take; other processes share a host's."""
    needs(backend, "memory.limit")
    backend.memory.empty_cache()
    before = backend.memory.stats()
    kept = mebibytes(backend, LARGE)
    held = backend.memory.stats()
    assert before.free - held.free == held.reserved - before.reserved >= kept.numel()
    assert held.total == before.total


def test_the_total_is_the_memory_that_the_device_is_known_to_have(backend: Any) -> None:  # T48
    stats = backend.memory.stats()
    known = backend.device.properties().total_memory
    if stats.total is None:
        assert known is None
        return
    assert stats.total == known
    if backend.device.is_host:
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        assert 0 < stats.free <= stats.total <= machine


def test_a_peak_that_cannot_start_anew_stays(backend: Any) -> None:
    if backend.capabilities().offers("memory.peak_reset"):
        mebibytes(backend, 8)
        backend.memory.reset_peak()
        stats = backend.memory.stats()
        assert stats.peak_reserved is None or stats.peak_reserved - stats.reserved < 8 * MIB
        return
    before = backend.memory.stats()
    backend.memory.reset_peak()
    after = backend.memory.stats()
    assert (after.peak_allocated, after.peak_reserved) == (before.peak_allocated, before.peak_reserved)


def test_more_than_the_device_has_is_an_error_or_a_search_needs_an_end(backend: Any, start: Any) -> None:  # T49
    if backend.capabilities().offers("memory.oom"):
        needs(backend, "device.stream")  # a lazy device allocates when its graph runs
        total = backend.memory.stats().total
        with pytest.raises(RuntimeError) as caught:
            torch.empty(2 * total, dtype=torch.uint8, device=backend.device.torch_device)
        assert backend.memory.is_oom(caught.value)
        return
    if backend.capabilities().offers("memory.track"):
        session = start()
        found = accel.find_batch_size(
            lambda batch: mebibytes(backend, batch), 4, budget=16 * MIB, repeats=1, session=session
        )
        assert (found.batch, found.too_large) == (16, 17)
        return
    with pytest.raises(UnsupportedError, match="give most="):
        accel.find_batch_size(lambda batch: None, 4, session=start())


def test_the_course_of_a_step_is_split_into_kinds_and_drawn_or_refused(
    backend: Any, start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    from accel.bench import _memory_plot, resnet50
    from accel.bench._options import Options

    if not backend.capabilities().offers("memory.course"):
        monkeypatch.setenv("ACCEL_BACKEND", backend.name)
        options = Options(model="resnet18", data="synthetic", size=32, batch=2, steps=1)
        with pytest.raises(UnsupportedError, match=r"memory\.course"):
            resnet50.run(options, tmp_path, "accel bench", str(tmp_path / "step.png"))
        return
    session = start()
    case = Case("narrow", batch=8)
    net = case.made()
    model, sgd = session.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    images = backend.device.move(torch.randn(8, 3, 32, 32))
    labels = backend.device.move(torch.arange(8))

    def step() -> None:
        session.backward(cross_entropy(model(images), labels))
        session.step(sgd)

    step()  # makes the optimizer's state
    before = backend.memory.stats().allocated
    with backend.memory.track() as tracked, Recorder(backend.device.type, [net], [sgd]) as recorder:
        step()
    course, taken = recorder.course(), backend.memory.allocator.taken
    highest = course.highest(taken)
    assert set(highest) == set(KINDS)
    numbers = sum(parameter.numel() for parameter in net.parameters())
    assert highest["parameters"] >= highest["gradients"] >= 4 * numbers
    assert highest["optimizer"] >= 4 * numbers
    assert highest["activations"] > highest["gradients"]
    assert highest["workspace"] > 0
    elsewhere = 0 if before is None else before - int(sum(curve[0] for curve in course.curves(taken).values()))
    assert tracked.peak - elsewhere == pytest.approx(course.peak(taken), rel=0.05)
    _memory_plot.draw(course, backend.memory.allocator, tmp_path / "step.png", "a step", {"peak": tracked.peak})
    assert (tmp_path / "step.png").read_bytes().startswith(b"\x89PNG")


COVERED = {
    "allocated": (test_memory.test_live_bytes_follow_what_is_allocated_and_peaks_stay,
                  test_memory_figures.test_live_bytes_are_a_number_inside_a_block),
    "reserved": (test_reserved_bytes_follow_what_is_held_and_their_peak_stays,),
    "peak_allocated": (test_memory.test_live_bytes_follow_what_is_allocated_and_peaks_stay,),
    "peak_reserved": (test_reserved_bytes_follow_what_is_held_and_their_peak_stays,),
    "total": (test_the_total_is_the_memory_that_the_device_is_known_to_have,),
    "free": (test_free_bytes_fall_by_what_the_allocator_takes_from_the_device,
             test_the_total_is_the_memory_that_the_device_is_known_to_have),
    "memory.peak_reset": (test_memory.test_peaks_start_anew_at_the_live_bytes,
                          test_a_peak_that_cannot_start_anew_stays),
    "memory.track": (test_memory_figures.test_a_block_gives_its_peak_and_its_change_or_says_why_not,),
    "memory.course": (test_the_course_of_a_step_is_split_into_kinds_and_drawn_or_refused,),
    "memory.snapshot": (test_memory.test_a_snapshot_holds_the_history_since_recording_began_or_is_refused,),
    "memory.limit": (test_memory.test_a_limit_is_kept_and_lifted_or_refused,),
    "memory.oom": (test_more_than_the_device_has_is_an_error_or_a_search_needs_an_end,
                   test_batch_size.test_the_largest_batch_fits_again_and_again_and_leaves_the_cache_empty),
}  # fmt: skip


def test_every_figure_and_every_cell_about_memory_has_a_test(backend: Any) -> None:
    listed = {name for name in backend.capabilities() if name.startswith("memory.")}
    elsewhere = {"memory.allocated", "memory.reserved", "memory.pinned"}  # of the figures' tests, and of copies' own
    assert listed - elsewhere <= set(COVERED)
    assert set(FIELDS) <= set(COVERED)
