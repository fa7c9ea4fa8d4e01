"""Records of something that never ran: what they share, and every figure unknown, with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import uuid4

from accel.records._record import (
    BackendPart,
    Curve,
    Figure,
    Hardware,
    Label,
    Numerics,
    Protocol,
    Record,
    Results,
    Series,
    Workload,
)


def new_id(stem: str, made: datetime) -> str:
    """A record's id: what it is of, when it was made (UTC), and what tells it from others of that second."""
    return f"{stem}-{made:%Y%m%dT%H%M%SZ}-{uuid4().hex[:6]}"


def predicted(
    reason: str,
    *,
    id: str,  # noqa: A002 - as the record calls it
    made: datetime,
    command: str,
    benchmark: str,
    backend: BackendPart,
    chip: Label,
    devices: int,
    hosts: Figure,
    details: Mapping[str, str],
    versions: Mapping[str, str],
    numerics: Numerics,
    workload: Workload,
    results: Mapping[str, Any],
    **parts: Any,
) -> Record:
    """A record of the origin `predicted`: whatever is not in `results` is unknown for `reason`.

    parts: fields of `Record` that not every such record has, such as `plan`.
    """
    protocol, unknown = _unrun(reason)
    return Record(
        id=id,
        time=f"{made:%Y-%m-%dT%H:%M:%SZ}",
        command=command,
        benchmark=benchmark,
        origin="predicted",
        backend=backend,
        hardware=Hardware(
            chip=chip,
            devices=Figure(devices, "devices"),
            world_size=Figure(devices, "ranks"),
            hosts=hosts,
            details=dict(details),
        ),
        versions=dict(versions),
        numerics=numerics,
        workload=workload,
        protocol=protocol,
        results=replace(unknown, **results),
        **parts,
    )


def _unrun(reason: str) -> tuple[Protocol, Results]:

    def unknown(unit: str) -> Figure:
        return Figure(None, unit, reason=reason)

    protocol = Protocol(
        steps=unknown("steps"),
        repeats=unknown("repeats"),
        warmup_steps=unknown("steps"),
        clock=f"none: {reason}",
        loader_workers=unknown("workers"),
        threads=unknown("threads"),
        threads_source=reason,
    )
    results = Results(
        throughput=unknown("images/s"),
        throughput_per_device=unknown("images/s"),
        throughput_repeats=Series((), "images/s", reason=reason),
        step_time=unknown("s"),
        step_time_p10=unknown("s"),
        step_time_p90=unknown("s"),
        step_times=Series((), "s", reason=reason),
        first_step_time=unknown("s"),
        compile_time=unknown("s"),
        loss_curve=Curve((), "nats", reason=reason),
        accuracy=unknown("fraction"),
        peak_allocated=unknown("bytes"),
        peak_reserved=unknown("bytes"),
        compiles=unknown("graphs"),
        fallbacks=unknown("operations"),
    )
    return protocol, results
