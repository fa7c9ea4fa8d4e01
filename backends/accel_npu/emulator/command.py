"""`accel emulate npu`: run a command on emulated NPUs, or compare the emulator with torch_npu wheels."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Annotated

import typer

from accel.errors import ArgumentError
from accel_npu.emulator import build, environment, packages, symbols

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(context_settings={"allow_interspersed_args": False})
def npu(
    command: Annotated[list[str] | None, typer.Argument(help="Command to run, after `--`.")] = None,
    devices: Annotated[int, typer.Option(help="NPUs to emulate.")] = 2,
    hbm: Annotated[str, typer.Option(help="Memory of each NPU, such as 8GiB.")] = "64GiB",
    mode: Annotated[
        str, typer.Option(help="immediate, or threaded: a stream has a thread, so a missing wait shows.")
    ] = "immediate",
    jitter: Annotated[int, typer.Option(help="Longest random pause before a task, in us (threaded).")] = 0,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Compile the emulator again.")] = False,
    check_symbols: Annotated[
        bool,
        typer.Option("--check-symbols", help="Compare with torch_npu wheels: files or versions."),
    ] = False,
) -> None:
    """Run COMMAND on the released torch_npu over an emulated CANN; no Ascend hardware is needed."""
    if check_symbols:
        folder = build.build(packages.find(), rebuild=rebuild)
        raise typer.Exit(symbols.report(folder, command or []))
    # The options are checked before anything is compiled.
    environment.environment(build.cache_folder(), devices=devices, hbm=hbm, mode=mode, jitter=jitter)
    if not command:
        raise ArgumentError("no command: expected `accel emulate npu [options] -- COMMAND`, like `-- python train.py`")
    folder = build.build(packages.find(), rebuild=rebuild)
    environ = environment.environment(folder, devices=devices, hbm=hbm, mode=mode, jitter=jitter)
    program = shutil.which(command[0], path=environ.get("PATH"))
    if program is None:
        raise ArgumentError(f"command {command[0]!r} was not found on PATH")
    sys.stdout.flush()
    os.execve(program, command, environ)
