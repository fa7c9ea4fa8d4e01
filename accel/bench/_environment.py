"""What a record says of where a run took place: hardware over all ranks, versions, numerics read back, peak memory."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch

from accel import __version__
from accel.chips import Recognition, recognise
from accel.records import Figure, Hardware, Label, Numerics

if TYPE_CHECKING:
    from accel.session import Session


class Environment(NamedTuple):
    """The parts of a record that describe the machine."""

    hardware: Hardware
    recognition: Recognition  # of the chip, in accel's table
    versions: dict[str, str]
    numerics: Numerics
    peak_allocated: Figure
    peak_reserved: Figure
    warnings: list[str]


def gather(session: Session, conditions: dict[str, str]) -> Environment:
    """Read everything on this rank and exchange what may differ; every rank must call it, while the session is open.

    conditions: how the benchmark ran its steps, recorded beside the numerics in force.
    """
    backend = session.backend
    properties = backend.device.properties()
    stats = backend.memory.stats()
    mine = {
        "host": socket.gethostname(),
        "chip": properties.name,
        "peaks": [stats.peak_allocated, stats.peak_reserved],
        "reasons": [stats.reasons.get("peak_allocated", ""), stats.reasons.get("peak_reserved", "")],
    }
    ranks = backend.collective.all_gather_object(mine)
    chips = sorted({str(rank["chip"]) for rank in ranks})
    warnings = [f"ranks ran on different chips: {', '.join(chips)}"] if len(chips) > 1 else []
    allocated, reserved = (_peak(ranks, index) for index in range(2))
    return Environment(
        hardware=Hardware(
            chip=_chip(properties.name, chips),
            devices=Figure(session.world_size, "devices"),
            world_size=Figure(session.world_size, "ranks"),
            hosts=Figure(len({rank["host"] for rank in ranks}), "hosts"),
            details=dict(properties.extra),
        ),
        recognition=_recognition(properties.name, properties.total_memory, chips),
        versions={
            "accel": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "os": platform.platform(),
            **backend.versions,
        },
        numerics=_numerics(session, conditions),
        peak_allocated=allocated,
        peak_reserved=reserved,
        warnings=warnings,
    )


def _recognition(name: str | None, memory: int | None, chips: list[str]) -> Recognition:
    if len(chips) > 1:
        return Recognition(None, f"ranks ran on different chips: {', '.join(chips)}")
    return recognise(name, memory)


def counted(session: Session, before: Mapping[str, int]) -> dict[str, Figure]:
    """What the device's counters moved since `before`, on the rank with most; every rank must call it."""
    device = session.backend.device
    mine = {name: value - before[name] for name, value in device.counters().items()}
    ranks = session.backend.collective.all_gather_object(mine)
    figures = {}
    for name, unit in (("compiles", "graphs"), ("fallbacks", "operations")):
        value = max(rank[name] for rank in ranks) if name in mine else None
        figures[name] = Figure(value, unit, reason=device.uncounted().get(name))
    return figures


def _chip(name: str | None, chips: list[str]) -> Label:
    if len(chips) > 1:
        return Label(" and ".join(chips))
    return Label(name) if name else Label(None, "neither the driver nor the operating system names the device")


def _peak(ranks: list[dict[str, list[int | None]]], index: int) -> Figure:
    known = [peak for rank in ranks if (peak := rank["peaks"][index]) is not None]
    if len(known) == len(ranks):
        return Figure(max(known), "bytes")
    return Figure(None, "bytes", reason=str(next(reason for rank in ranks if (reason := rank["reasons"][index]))))


def _numerics(session: Session, conditions: dict[str, str]) -> Numerics:
    described = session.backend.precision.describe()
    policy = described.pop("policy")
    in_force = described.pop("switches")
    return Numerics(str(policy), {**described, **in_force, **conditions})
