"""Contract of `Device` and `Memory`: indices, random numbers, figures that are never a guess."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from accel.capabilities import Support
from accel.errors import ArgumentError, UnsupportedError
from accel.memory import FIELDS


def draws(backend: Any) -> list[Any]:
    device = backend.device.torch_device
    on_device = torch.rand(4, device=device).cpu().tolist()
    return [random.random(), float(np.random.rand()), torch.rand(2).tolist(), on_device]


def test_device_is_where_tensors_land(backend: Any) -> None:
    device = backend.device
    assert device.kind == backend.kind
    assert device.kind in ("eager", "lazy")
    assert torch.ones(2, device=device.torch_device).device.type == device.torch_device.type == device.type
    assert device.move(torch.ones(2)).device.type == device.type


@pytest.mark.parametrize("index", [-1, 10_000, True, "0"])
def test_device_index_out_of_range_names_the_count(backend: Any, index: Any) -> None:
    assert backend.device.count() >= 1
    for call in (backend.device.set, backend.device.properties):
        with pytest.raises(ArgumentError, match=str(backend.device.count())):
            call(index)


def test_device_properties_have_a_name_and_no_zero_for_unknown(backend: Any) -> None:
    backend.device.set(0)
    found = backend.device.properties()
    assert found.name is None or found.name.strip()
    assert found.total_memory is None or found.total_memory > 0
    assert found.cores is None or found.cores > 0


def test_seed_covers_every_generator_and_repeats(backend: Any) -> None:  # T61
    backend.device.seed(7)
    first = draws(backend)
    second = draws(backend)
    backend.device.seed(7)
    again = draws(backend)
    backend.device.seed(8)
    other = draws(backend)
    assert first == again
    assert all(a != b for a, b in zip(first, second, strict=True)), "the same numbers came twice in a row"
    assert all(a != b for a, b in zip(first, other, strict=True))


def test_random_state_comes_back_exactly(backend: Any) -> None:  # T52
    backend.device.seed(3)
    draws(backend)
    state = backend.device.rng_state()
    expected = draws(backend)
    draws(backend)
    assert backend.device.set_rng_state(state) == []
    assert draws(backend) == expected


def test_foreign_random_state_is_named_and_harms_nothing(backend: Any) -> None:  # T52
    backend.device.seed(3)
    state = backend.device.rng_state()
    expected = draws(backend)
    backend.device.seed(4)
    notes = backend.device.set_rng_state({"elsewhere": torch.zeros(16, dtype=torch.uint8), **state})
    assert len(notes) == 1
    assert "elsewhere" in notes[0]
    assert draws(backend) == expected


def test_bad_part_of_a_random_state_does_not_skip_the_rest(backend: Any) -> None:  # T52
    state = backend.device.rng_state()
    expected = draws(backend)
    notes = backend.device.set_rng_state({**state, "numpy": {"kind": "broken"}})
    assert len(notes) == 1
    assert "numpy" in notes[0]
    assert draws(backend)[0] == expected[0]
    assert backend.device.set_rng_state({k: v for k, v in state.items() if k != "python"}) != []


def test_synchronize_flush_and_counters_answer(backend: Any) -> None:
    backend.device.flush()
    backend.device.synchronize()
    counters = backend.device.counters()
    uncounted = backend.device.uncounted()
    assert sorted([*counters, *uncounted]) == ["compiles", "fallbacks"]  # a figure, or why there is none
    assert all(uncounted.values())
    assert all(value >= 0 for value in counters.values())


@pytest.mark.parametrize("feature", ["stream", "event"])
def test_streams_and_events_exist_or_are_refused_with_a_reason(backend: Any, feature: str) -> None:
    make = getattr(backend.device, feature)
    if backend.capabilities()[f"device.{feature}"].available:
        assert make() is not None
    else:
        with pytest.raises(UnsupportedError):
            make()


def test_timing_events_measure_milliseconds(backend: Any) -> None:
    if not backend.capabilities()["device.event"].available:
        return  # the test above holds the backend to its refusal
    begin, end = backend.device.event(timing=True), backend.device.event(timing=True)
    begin.record()
    torch.ones(64, 64, device=backend.device.torch_device).sum()
    end.record()
    backend.device.synchronize()
    assert begin.elapsed_time(end) >= 0


def test_memory_gives_bytes_or_a_reason(backend: Any) -> None:  # T48
    kept = torch.ones(256, device=backend.device.torch_device)
    stats = backend.memory.stats()
    assert kept.numel() == 256
    for name in FIELDS:
        value = getattr(stats, name)
        if value is None:
            assert stats.reasons[name].strip()
        else:
            assert isinstance(value, int)
            assert name in ("allocated", "peak_allocated") or value > 0
    assert backend.memory.stats(0) is not None
    with pytest.raises(ArgumentError, match="index"):
        backend.memory.stats(10_000)


def test_memory_figures_agree_with_the_capability_table(backend: Any) -> None:
    backend.device.set(0)
    kept = torch.ones(256, device=backend.device.torch_device)
    stats = backend.memory.stats()
    for feature in ("allocated", "reserved"):
        cell = backend.capabilities()[f"memory.{feature}"]
        assert (getattr(stats, feature) is not None) is cell.available, cell.why
    assert kept.numel() == 256


def test_peak_reset_keeps_live_bytes(backend: Any) -> None:  # T48
    before = backend.memory.stats()
    backend.memory.reset_peak()
    after = backend.memory.stats()
    if after.peak_reserved is not None and after.reserved is not None:
        assert after.peak_reserved > 0
        if backend.capabilities()["memory.peak_reset"].available:
            assert after.peak_reserved <= max(before.peak_reserved or 0, 2 * after.reserved)
    backend.memory.empty_cache()


def test_out_of_memory_is_told_from_other_errors(backend: Any) -> None:  # T49
    assert backend.memory.is_oom(MemoryError())
    assert not backend.memory.is_oom(RuntimeError("shape mismatch"))
    assert not backend.memory.is_oom(ValueError("out of memory"))


def test_real_out_of_memory_is_recognised(backend: Any) -> None:  # T49
    """It comes when the memory is taken: at once, or when a lazy device runs what was recorded."""
    with pytest.raises((RuntimeError, MemoryError)) as caught:  # noqa: PT012 - which line raises is the device's business
        kept = torch.empty(2**60, dtype=torch.uint8, device=backend.device.torch_device)
        backend.device.flush()
        backend.device.synchronize()
        del kept
    assert backend.memory.is_oom(caught.value), repr(caught.value)


def test_snapshot_is_written_or_refused(backend: Any, tmp_path: Any) -> None:
    path = tmp_path / "snapshot.pickle"
    if backend.capabilities()["memory.snapshot"].support is Support.UNSUPPORTED:
        with pytest.raises(UnsupportedError):
            backend.memory.snapshot(path)
        assert not path.exists()
    else:
        backend.memory.snapshot(path)
        assert path.stat().st_size > 0


def test_every_capability_says_why(backend: Any) -> None:
    table = backend.capabilities()
    assert len(table) > 10
    for feature, cell in table.items():
        assert cell.why.strip(), feature
    with pytest.raises(UnsupportedError, match="no_such_feature"):
        table.require("no_such_feature")
