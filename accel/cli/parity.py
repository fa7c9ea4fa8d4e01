"""`accel parity`: record what a training run computes layer by layer, and find where two runs part."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import rich
import typer
from rich.table import Table

from accel.errors import ArgumentError

if TYPE_CHECKING:
    from accel.parity import Comparison

app = typer.Typer(help="Record training runs and find where two of them part.", no_args_is_help=True)


@app.command(context_settings={"allow_interspersed_args": False})
def record(
    script: Annotated[str | None, typer.Argument(help="A training script that uses accel; or --model.")] = None,
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    out: Annotated[str, typer.Option(help="Directory of the trace.")] = "trace",
    steps: Annotated[int, typer.Option(help="Optimizer steps to record.")] = 20,
    seed: Annotated[int | None, typer.Option(help="Seed, in place of the script's own; 0 with --model.")] = None,
    model: Annotated[str | None, typer.Option(help="resnet50, resnet18, vit or lm, instead of a script.")] = None,
    precision: Annotated[str, typer.Option(help="With --model: fp32, tf32, bf16 or fp16.")] = "fp32",
    batch: Annotated[int, typer.Option(help="With --model: samples a micro-batch.")] = 8,
    size: Annotated[int, typer.Option(help="With --model: image side in px.")] = 32,
    accumulate: Annotated[int, typer.Option(help="With --model: micro-batches an optimizer step.")] = 1,
    dropout: Annotated[float, typer.Option(help="With --model lm.")] = 0.1,
    rate: Annotated[float | None, typer.Option(help="With --model: peak learning rate.")] = None,
) -> None:
    """Record the first steps of a training run: losses, norms, and a sketch of every layer. Options come first."""
    if (script is None) == (model is None):
        raise ArgumentError("parity record needs a script or --model, and not both; options come before the script")
    if seed is not None and seed < 0:
        raise ArgumentError(f"--seed {seed}: expected an integer from 0")
    from accel.parity import _builtin, record

    command = shlex.join(["accel", *sys.argv[1:]])
    if model is not None:
        start = 0 if seed is None else seed
        work = _builtin.Work(model, steps, start, batch, size, precision, accumulate, dropout, rate)
        done = record(lambda: _builtin.train(work), out=out, steps=steps, seed=start, command=command)
    else:
        done = record(str(script), args or [], out=out, steps=steps, seed=seed, command=command)
    short = "" if done == steps else f" (the run ended before the {steps} that were asked for)"
    print(f"trace of {done} step(s){short}: {out}", file=sys.stderr)  # noqa: T201


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="A trace.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another one.")],
    steps: Annotated[int | None, typer.Option(help="Compare the first steps only.")] = None,
    plot: Annotated[
        str | None, typer.Option(help="Draw differences and tolerances to this .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Say within which tolerance two traces agree (exit code 0), or where they part first (exit code 1)."""
    from accel import parity

    found = parity.compare(parity.read(a), parity.read(b), steps)
    if plot is not None:
        from accel.parity._plot import draw

        draw(found, plot)
    _show(found)
    if not found.agree:
        raise typer.Exit(1)


def _show(found: Comparison) -> None:
    console = rich.get_console()
    for letter, trace in (("A", found.a), ("B", found.b)):
        console.print(f"{letter}  {trace.who}", markup=False, highlight=False, soft_wrap=True)
    for note in found.notes:
        console.print(f"note: {note}", markup=False, highlight=False, soft_wrap=True)
    table = Table("direction", "nearest to its tolerance", "at step", "allowed there", box=None)
    for direction, curve in found.curves.items():
        at = curve.nearest
        if at is not None:
            table.add_row(direction, f"{curve.differences[at]:.2g}", str(at + 1), f"{curve.allowed[at]:.2g}")
    console.print(table)
    console.print(found.verdict, markup=False, highlight=False, soft_wrap=True)
