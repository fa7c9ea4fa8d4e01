"""`accel bench`: benchmarks; each writes a record that `accel compare` reads."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import rich
import typer

if TYPE_CHECKING:
    from accel.bench.plan import Planned
    from accel.records import Record

app = typer.Typer(help="Run a benchmark and write its record.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Run a benchmark and write its record."""


@app.command("resnet50")
@app.command("vit_b_16")
def train(
    context: typer.Context,
    out: Annotated[str, typer.Option(help="Folder for the record, or a file that ends in .json.")] = "results",
    model: Annotated[
        str | None, typer.Option(help="resnet50, resnet18 or vit_b_16; that of the command's name by default.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="digits, synthetic or folder:PATH; digits by default, synthetic with --aot.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="Image side in px; 32 for digits, else 224.")] = None,
    batch: Annotated[int, typer.Option(help="Images a micro-batch on one device.")] = 32,
    accumulate: Annotated[int, typer.Option(help="Micro-batches an optimizer step.")] = 1,
    precision: Annotated[str, typer.Option(help="fp32, tf32, bf16 or fp16.")] = "fp32",
    steps: Annotated[int | None, typer.Option(help="Timed optimizer steps in each repeat; 10 by default.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data in all, instead of --steps.")] = None,
    warmup: Annotated[int, typer.Option(help="Untimed steps first; more while something compiles.")] = 3,
    repeats: Annotated[int, typer.Option(help="Repeats; each gives one throughput.")] = 3,
    workers: Annotated[int, typer.Option(help="Data loading processes of each rank.")] = 0,
    pin: Annotated[
        bool | None, typer.Option("--pin/--no-pin", help="Batches in page-locked memory; where the backend has it.")
    ] = None,
    tune_input: Annotated[
        bool, typer.Option("--tune-input", help="After the run, try numbers of workers and pinning; says what to use.")
    ] = False,
    lr: Annotated[float | None, typer.Option(help="Peak learning rate; 0.001 for each image of a step.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of host and device generators.")] = 0,
    evaluate: Annotated[bool, typer.Option("--evaluate", help="Accuracy on held-out data after the run.")] = False,
    target: Annotated[
        float | None,
        typer.Option(help="With --epochs: evaluate after each epoch; the time to this accuracy, such as 0.759."),
    ] = None,
    aot: Annotated[
        str | None, typer.Option(metavar="TOPOLOGY", help="Run nothing; compile a step for this TPU, such as v5e:2x2.")
    ] = None,
    fit: Annotated[bool, typer.Option("--fit", help="With --aot: the largest batch on one device that fits.")] = False,
    aot_python: Annotated[
        str | None, typer.Option(help="With --aot: the Python that has jax and libtpu; else ACCEL_AOT_PYTHON.")
    ] = None,
    aot_optimization: Annotated[
        str, typer.Option(help="With --aot: O0 to O3, or default, libtpu's own, which takes ten times as long as O0.")
    ] = "O0",
    plan: Annotated[bool, typer.Option("--plan", help="Run nothing; plan the memory of a step on --chip.")] = False,
    chip: Annotated[str | None, typer.Option(help="With --plan: a chip of `accel chips`, such as H100-SXM5.")] = None,
    headroom: Annotated[
        float | None, typer.Option(help="With --plan: share of the chip's memory not given to the step; 0.1.")
    ] = None,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Recompute activations in backward: less memory, the same numbers.")
    ] = False,
    memory_plot: Annotated[
        str | None, typer.Option(metavar="FILE", help="Draw memory over one step into this .png, .svg or .pdf.")
    ] = None,
    compiled: Annotated[bool, typer.Option("--compile", help="Run the model through torch.compile.")] = False,
    devices: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="Launch on each number of devices; how it scales. With --plan one number: that train together.",
        ),
    ] = None,
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="Record forward and backward once, then replay them.")
    ] = False,
) -> None:
    """Train a model and time it: throughput, step times, loss curve, and accuracy with --evaluate."""
    from accel.bench._options import Options
    from accel.errors import ArgumentError

    options = Options(
        model=model or str(context.info_name),
        data=data or ("digits" if aot is None and not plan else "synthetic"),
        size=size,
        batch=batch,
        accumulate=accumulate,
        precision=precision,
        steps=steps,
        epochs=epochs,
        warmup=warmup,
        repeats=repeats,
        workers=workers,
        pin=pin,
        tune_input=tune_input,
        lr=lr,
        seed=seed,
        evaluate=evaluate,
        target=target,
        compile=compiled,
        checkpoint=checkpoint,
        graphs=cuda_graphs,
    )
    command = shlex.join(["accel", *sys.argv[1:]])
    if devices is not None and not plan:
        _scale(devices, out, alone={"--aot": aot is not None, "--fit": fit})
        return
    if aot is not None and (plan or memory_plot is not None):
        raise ArgumentError("--aot compiles a step for a TPU: leave out --plan and --memory-plot")
    if aot is not None:
        from accel.bench import aot as ahead

        _show_prediction(
            *ahead.run(options, aot, out, command, fit=fit, optimization=aot_optimization, python=aot_python)
        )
        return
    if plan:
        from accel.bench import plan as ahead_of_run
        from accel.plan import HEADROOM

        if chip is None:
            raise ArgumentError("--plan needs a chip: --chip H100-SXM5; `accel chips` lists all")
        share = HEADROOM if headroom is None else headroom
        together = 1 if devices is None else _together(devices)
        found = ahead_of_run.run(options, chip, out, command, devices=together, headroom=share, picture=memory_plot)
        _show_plan(found)
        return
    if chip is not None or headroom is not None:
        raise ArgumentError(f"{'--chip' if chip else '--headroom'} was given without --plan; add --plan")
    if fit or aot_python is not None:
        raise ArgumentError(
            f"{'--fit' if fit else '--aot-python'} was given without --aot; name a topology: --aot v5e:2x2"
        )
    from accel.bench.resnet50 import run
    from accel.compare import show

    outcome = run(options, out, command, memory_plot)
    if outcome is None:
        return
    path, record = outcome
    results = record.results
    figures = [f"{show(results.throughput)}", f"step {show(results.step_time)}"]
    last = results.loss_curve.points[-1][1] if results.loss_curve.points else None
    figures += [f"loss {last:.4f}"] if last is not None else []
    figures += [f"accuracy {show(results.accuracy)}"] if results.accuracy.value is not None else []
    console = rich.get_console()
    console.print(f"{', '.join(figures)} ({record.origin})", markup=False, highlight=False)
    if record.goal is not None and record.goal.outcome != "no target":
        console.print(f"target {show(record.goal.target)}: {_reached(record)}", markup=False, highlight=False)
    if record.input is not None:
        console.print(f"input: {record.input.advice}", markup=False, highlight=False, soft_wrap=True)
    for warning in record.warnings:
        console.print(f"warning: {warning}", markup=False, highlight=False)
    console.print(f"record: {path}", markup=False, highlight=False, soft_wrap=True)


def _reached(record: Record) -> str:
    from accel.compare import show

    goal = record.goal
    assert goal is not None
    if goal.time_to_target.value is None:
        return str(goal.time_to_target.reason)
    return f"reached after {goal.epochs_to_target.words()} in {show(goal.time_to_target)}"


def _scale(devices: str, out: str, alone: dict[str, bool]) -> None:
    from accel import compare
    from accel.bench import scaling
    from accel.errors import ArgumentError

    for option, given in alone.items():
        if given:
            raise ArgumentError(f"{option} compiles and runs nothing; give it without --devices")
    counts = scaling.parse(devices)
    at = next(i for i, text in enumerate(sys.argv) if text.split("=")[0] == "--devices")
    arguments = [*sys.argv[2:at], *sys.argv[at + (1 if "=" in sys.argv[at] else 2) :]]
    compare.print_report(compare.compare(scaling.run(counts, arguments, out)), rich.get_console())


def _together(devices: str) -> int:
    """The one number of devices that a plan is of."""
    from accel.errors import ArgumentError

    if not devices.isdecimal() or int(devices) < 1:
        raise ArgumentError(f"--devices is {devices!r}; with --plan expected one number from 1, such as --devices 8")
    return int(devices)


def _show_prediction(path: Path, record: Record) -> None:
    from accel.compare import show

    found, console = record.prediction, rich.get_console()
    assert found is not None
    batch = record.workload.batch_per_device.value
    where = (
        f"{found.topology} ({record.hardware.chip.value}, {record.hardware.devices.words()}), batch {batch} a device"
    )
    if found.fits:
        figures = f"fits: peak HBM {show(record.results.peak_allocated)}, temporary {show(found.temporary)}, arguments "
        figures += f"{show(found.arguments)}, {show(found.flops)} and {show(found.bytes_accessed)} moved a step"
    else:
        figures = f"does not fit: {show(found.missing)} are missing of {show(found.needed)}. {found.message}"
    lines = [f"{where}: {figures}; compiled in {show(found.compile_time)} ({record.origin})"]
    if found.batches_tried:
        tried = ", ".join(map(str, found.batches_tried))
        lines.append(f"largest batch {found.largest_batch.words()} in {len(found.batches_tried)} compilations: {tried}")
    lines += [f"warning: {warning}" for warning in record.warnings]
    for line in (*lines, f"record: {path}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _show_plan(found: Planned) -> None:
    from rich.table import Table

    plain, less = found.plain, found.checkpointed
    table = Table("", "plain", "checkpointed", box=None, pad_edge=False, title=None)
    rows = ("parameters", "gradients", "optimizer", "activations", "workspace", "peak", "peak_allocated")
    for row in (*rows, "peak_reserved"):
        table.add_row(row.replace("_", " "), *(_size(getattr(one, row)) for one in (plain, less)))
    largest = [str(one.largest_batch or "none fits") for one in (plain, less)]
    table.add_row("fits", *("yes" if one.fits else "no" for one in (plain, less)))
    table.add_row("largest batch", *largest)
    console = rich.get_console()
    console.print(
        f"{plain.chip}: {_size(plain.capacity)}, of which {plain.headroom:.0%} is left free; batch {plain.batch} x "
        f"{plain.accumulate}, {plain.precision}, {plain.devices} device(s) ({found.record.origin})",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    console.print(table)
    lines = [f"warning: {warning}" for warning in found.record.warnings]
    if plain.accumulate > 1:
        saved = plain.saved_by_accumulation
        says = f"saves {_size(saved)}" if saved >= 0 else f"takes {_size(-saved)} more"
        whole = f"one batch of {plain.batch * plain.accumulate} would peak at {_size(plain.whole_batch_peak)}"
        lines.insert(0, f"accumulating {says}: {whole}")
    for line in (*lines, f"record: {found.path}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _size(value: int | None) -> str:
    return "unknown" if value is None else f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"


@app.command()
def aot_table(
    out: Annotated[str, typer.Option(help="Folder for the records and table.md.")],
    model: Annotated[str, typer.Option(help="resnet50 or resnet18.")] = "resnet50",
    size: Annotated[int, typer.Option(help="Image side in px.")] = 224,
    precision: Annotated[str, typer.Option(help="fp32, tf32 or bf16.")] = "bf16",
    topology: Annotated[list[str] | None, typer.Option(help="Repeatable; one chip of v3 to tpu7x by default.")] = None,
    batch: Annotated[list[int] | None, typer.Option(help="Images on one device; repeatable; 32, 256, 1024.")] = None,
    missing: Annotated[bool, typer.Option("--missing", help="Keep the records that are there.")] = False,
    aot_python: Annotated[str | None, typer.Option(help="The Python that has jax and libtpu.")] = None,
    aot_optimization: Annotated[str, typer.Option(help="O0 to O3, or default, libtpu's own.")] = "O0",
) -> None:
    """A training step compiled for each TPU generation at several batches, with no TPU at hand: records and a table."""
    from accel.bench import aot_table as tables
    from accel.bench._options import Options

    options = Options(model=model, data="synthetic", size=size, precision=precision)
    console = rich.get_console()
    path = tables.run(
        options,
        out,
        shlex.join(["accel", *sys.argv[1:]]),
        topologies=topology or tables.TOPOLOGIES,
        batches=batch or tables.BATCHES,
        missing_only=missing,
        optimization=aot_optimization,
        python=aot_python,
        told=lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True),
    )
    console.print(f"table: {path}", markup=False, highlight=False, soft_wrap=True)


@app.command()
def collectives(
    nproc: Annotated[int, typer.Option(help="Ranks to start on this host; under a launcher, what it started.")] = 2,
    op: Annotated[
        list[str] | None,
        typer.Option(
            help="all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send_recv or all; repeatable."
        ),
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="A dtype of torch, such as bfloat16; repeatable.")] = None,
    redop: Annotated[list[str] | None, typer.Option(help="sum, mean, min, max or product; repeatable.")] = None,
    min_bytes: Annotated[str, typer.Option(help="Smallest size.")] = "8",
    max_bytes: Annotated[str, typer.Option(help="Largest size, as memory allows.")] = "1G",
    factor: Annotated[int, typer.Option(help="From one size to the next.")] = 4,
    calls: Annotated[int, typer.Option(help="Calls in a timed block, at most.")] = 20,
    blocks: Annotated[int, typer.Option(help="Timed blocks of each contender in a row, at most.")] = 200,
    warmup: Annotated[int, typer.Option(help="Untimed calls first.")] = 5,
    seconds: Annotated[float, typer.Option(help="What a row may take; blocks get fewer to fit, 3 at least.")] = 10.0,
    bare: Annotated[bool, typer.Option(help="Time torch.distributed's own calls in between.")] = True,
    coalescing: Annotated[int, typer.Option(help="Tensors of 1 KiB, apart and together; 0: none.")] = 100,
    out: Annotated[
        str, typer.Option(help="Folder for the record, or a file that ends in .json.")
    ] = "results/collectives",
    plot: Annotated[bool, typer.Option(help="Draw the figures beside the record; needs matplotlib.")] = True,
) -> None:
    """Time the collectives over a range of sizes, in nccl-tests' terms."""
    import os

    from accel.errors import ArgumentError

    if nproc < 2:
        raise ArgumentError(f"--nproc is {nproc}; expected at least 2, since nothing travels over one rank")
    from accel.bench import _collective_rank, bandwidth
    from accel.bench.collectives import Plan

    named = tuple(op or ["all_reduce"])
    plan = Plan(
        operations=bandwidth.OPERATIONS if named == ("all",) else named,
        dtypes=tuple(dtype or ["float32"]),
        reductions=tuple(redop or ["sum"]),
        smallest=bandwidth.parse_size(min_bytes),
        largest=bandwidth.parse_size(max_bytes),
        factor=factor,
        calls=calls,
        repeats=blocks,
        warmup=warmup,
        seconds=seconds,
        bare=bare,
        coalescing=coalescing,
    )
    asked = _collective_rank.Asked(plan, out, plot, shlex.join(["accel", *sys.argv[1:]]))
    if "RANK" in os.environ:  # under a launcher, whose ranks run this command
        raise typer.Exit(_collective_rank.run(asked))
    from accel.cli.launch import launch

    launch("accel.bench._collective_rank", [asked.to_json()], nproc=nproc, module=True)


@app.command()
def overhead(
    precision: Annotated[list[str] | None, typer.Option(help="fp32, bf16 or fp16; repeatable.")] = None,
    nproc: Annotated[int, typer.Option(help="Processes on this host; above 1 only the Session is compared.")] = 1,
    repeats: Annotated[int, typer.Option(help="Interleaved repeats, each giving one paired difference.")] = 60,
    block: Annotated[int, typer.Option(help="Training steps timed in a row in each repeat.")] = 100,
    limit: Annotated[float | None, typer.Option(help="Fail when accel's upper bound is above these us.")] = None,
    out: Annotated[str | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """What a Session adds to a hand-written training step, beside Accelerate and Fabric where installed; with --nproc
    above 1 also what each mode of checks adds to a collective.
    """
    import os

    from accel.errors import ArgumentError

    chosen = precision or ["fp32", "bf16", "fp16"]
    if nproc < 1:
        raise ArgumentError(f"--nproc {nproc}: expected an integer from 1")
    if out is not None and not Path(out).resolve().parent.is_dir():
        raise ArgumentError(f"--out {out}: its folder does not exist; make it first")
    if nproc > 1 and "RANK" not in os.environ:
        from accel.cli.launch import run_ranks

        words = ["-m", *f"accel bench overhead --nproc {nproc} --repeats {repeats} --block {block}".split()]
        words += [word for name in chosen for word in ("--precision", name)] + ([] if out is None else ["--out", out])
        raise typer.Exit(run_ranks(words, nproc))
    from accel.bench.overhead import measure, measure_calls, record, table

    results = [measure(p, repeats=repeats, block=block) for p in chosen]
    if nproc > 1:
        results.append(measure_calls(repeats=repeats, block=block))
    if os.environ.get("RANK", "0") != "0":
        return
    rich.get_console().print(table(results))
    if out is not None:
        Path(out).write_text(json.dumps(record(results), indent=2) + "\n")
    steps = results[: len(chosen)]
    above = [r for r in steps if limit is not None and r.interval("accel")[2] > limit]
    if above:
        names = ", ".join(f"{r.precision} {r.interval('accel')[2]:.1f} us" for r in above)
        rich.get_console().print(f"above the limit of {limit:g} us a step: {names}")
        raise typer.Exit(1)
