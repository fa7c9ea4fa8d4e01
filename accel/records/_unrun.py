"""The parts of a record of something that never ran: every figure unknown, with the reason."""

from __future__ import annotations

from accel.records._record import Curve, Figure, Protocol, Results, Series


def unrun(reason: str) -> tuple[Protocol, Results]:
    """Protocol and results without a figure, each with `reason`; callers put in what they know by `replace`."""

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
