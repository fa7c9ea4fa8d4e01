"""Phases of a step against a clock that is told what to show."""

from __future__ import annotations

from pathlib import Path

import pytest

import accel
import accel_cpu.device
from accel.bench._split import NAMES, EnergyMeter, Phases, figures


class Device:
    """A device and a clock in one: `at` is now; synchronizing takes no time."""

    def __init__(self) -> None:
        self.at = 0.0
        self.synchronized = 0

    def synchronize(self) -> None:
        self.synchronized += 1

    def flush(self) -> None: ...

    def counters(self) -> dict[str, int]:
        return {}


def step(device: Device, phases: Phases, seconds: dict[str, float], micro: int = 1) -> None:
    phases.begin()
    for _ in range(micro):
        for name in NAMES:
            device.at += seconds[name]
            phases.end(name)


def test_phases_of_micro_batches_add_up_and_the_median_step_is_told() -> None:
    device = Device()
    phases = Phases(device, lambda: device.at)
    phases.on = True
    times = {"data": 1.0, "forward": 2.0, "backward": 4.0, "update": 0.5}
    for factor in (9, 9, 1, 2, 3, 2, 2):  # the first two are too old
        step(device, phases, {name: seconds * factor for name, seconds in times.items()}, micro=3)
    assert phases.medians() == {name: 3 * 2 * seconds for name, seconds in times.items()}


def test_nothing_is_measured_or_synchronized_while_off() -> None:
    device = Device()
    phases = Phases(device, lambda: device.at)
    step(device, phases, dict.fromkeys(NAMES, 1.0))
    phases.on = True
    phases.end("data")  # in the middle of a step that began before
    assert phases.medians() == {}
    assert device.synchronized == 0


def test_without_steps_phases_are_unknown_and_one_rank_reduces_nothing() -> None:
    with accel.init(backend="cpu") as session:
        found, warnings = figures(session, Phases(session.backend.device), 10)
        assert warnings == []
        assert {figure.value for figure in found.values()} == {None}
        assert "--warmup 2" in str(found["data_time"].reason)
        assert found["reduce_time"].reason == "one rank reduces nothing"


def test_energy_of_the_host_is_its_processors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(accel_cpu.device, "RAPL", tmp_path)
    for zone, microjoules in (("intel-rapl:0", 2_000_000), ("intel-rapl:1", 500_000), ("intel-rapl:0:0", 7)):
        (tmp_path / zone).mkdir()
        (tmp_path / zone / "energy_uj").write_text(f"{microjoules}\n")
    with accel.init(backend="cpu") as session:
        assert session.backend.device.energy() == 2.5
        meter = EnergyMeter(session)
        meter.start()
        (tmp_path / "intel-rapl:1" / "energy_uj").write_text("1500000")
        meter.start()  # it has begun
        assert meter.stop(4).value == 0.25
        (tmp_path / "intel-rapl:0" / "energy_uj").write_text("3")  # wrapped
        assert meter.stop(4).value is None
        monkeypatch.setattr(accel_cpu.device, "RAPL", tmp_path / "absent")
        lost = meter.stop(4)
        assert lost.value is None
        assert "RAPL" in str(lost.reason)
