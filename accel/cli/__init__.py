"""The command line, `accel` or `python -m accel`: one module a command, and one place that turns errors into exit
codes.

Nothing here imports torch: `accel --help` answers at once, on a machine where torch itself is broken too.
"""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

from accel.cli import bench, chips, compare, conformance, doctor, emulate, launch, memory, parity, predict
from accel.errors import AccelError

app = typer.Typer(
    name="accel",
    help="One PyTorch training script, any accelerator, and an honest comparison of the hardware.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(doctor.app, name="doctor")
app.add_typer(bench.app, name="bench")
app.command()(compare.compare)
app.command()(memory.memory)
app.add_typer(parity.app, name="parity")
app.command()(predict.predict)
app.command()(chips.chips)
app.command()(conformance.conformance)
FOREIGN = {"allow_interspersed_args": False, "ignore_unknown_options": True}  # what follows belongs to another program
app.command(context_settings=FOREIGN)(launch.launch)
app.command(context_settings=FOREIGN)(emulate.emulate)


def main() -> NoReturn:
    """Run the command line. An `AccelError` becomes one line on standard error and its exit code; a wrong use exits
    with 2.
    """
    try:
        app()  # typer reports a wrong use itself, and exits with 2
    except AccelError as error:
        print(f"accel: {error.line}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)
    except MemoryError as error:
        why = f"accel: the host's memory is not enough ({error}); choose a smaller batch or image size"
        print(why, file=sys.stderr)  # noqa: T201
        sys.exit(1)
    sys.exit(0)
