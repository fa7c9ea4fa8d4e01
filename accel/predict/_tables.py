"""Every published run of the calibration sets beside its prediction with its chip left out, as Markdown."""

from __future__ import annotations

import statistics

from accel.predict._calibrate import ASSUMED_BATCH, Miss, calibrate, misses, sets

_PRECISIONS = {"lambda": ("fp16", "tf32"), "mxnet": ("fp16",), "mlperf": ("fp16",)}
_NAMES = {"fp16": "16 bit", "tf32": "TF32"}


def error_tables() -> str:
    """The tables of `docs/predict.md`: `accel predict --errors`."""
    lines: list[str] = []
    for chosen in sets():
        for precision in _PRECISIONS[chosen.name]:
            lines += _table(chosen.name, chosen.about, precision)
    return "\n".join(lines).rstrip() + "\n"


def _table(name: str, about: str, precision: str) -> list[str]:
    found = misses(name, precision)
    errors = [abs(miss.error) for miss in found]
    matrix, memory, constant = calibrate(name, precision).parameters
    fitted = (
        f"{about[0].upper()}{about[1:]}. Fitted to all of its chips: {matrix:.0%} of the dense peak, {memory:.0%} of "
        f"the bandwidth, {constant * 1e6:.0f} us an image. Each chip left out in turn: median error "
        f"**{statistics.median(errors):.1%}**, worst **{max(errors):.1%}**."
    )
    return [
        f"#### `{name}`, {_NAMES[precision]}",
        "",
        fitted,
        "",
        "| chip | devices | batch a device | published, images/s a device | predicted | error |",
        "| --- | --- | --- | --- | --- | --- |",
        *(_row(miss) for miss in found),
        "",
    ]


def _row(miss: Miss) -> str:
    run = miss.run
    batch = run.batch_per_device or f"not printed, {ASSUMED_BATCH} taken"
    published = f"{run.per_device:,.0f}{' with evaluation' if run.evaluation_included else ''}"
    return f"| {run.chip} | {run.devices} | {batch} | {published} | {miss.predicted:,.0f} | {miss.error:+.1%} |"
