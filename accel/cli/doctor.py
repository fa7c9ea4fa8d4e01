"""`accel doctor`: what this machine has, which backends can be used and why, and which one a session would get; and
`accel doctor hang`: why a job hung.
"""

from __future__ import annotations

import platform
from typing import Annotated

import rich
import typer
from rich.table import Table

from accel import _env, _probe, registry
from accel.errors import BackendError

app = typer.Typer(invoke_without_command=True)


@app.callback()
def doctor(context: typer.Context) -> None:
    """Say which backends can be used here and why, and which one a session would get."""
    if context.invoked_subcommand is not None:
        return
    console = rich.get_console()
    versions = _probe.versions("torch", "numpy", "torch_npu", "torch_xla", "torch_tpu", "accel-torch")
    console.print(f"python {platform.python_version()} on {platform.platform()}")
    console.print(", ".join(f"{name} {version}" for name, version in versions.items()))
    table = Table("backend", "usable", "hardware", "why", box=None, pad_edge=False)
    for info in registry.backends():
        name = f"{info.name} ({', '.join(info.aliases)})" if info.aliases else info.name
        table.add_row(name, "yes" if info.usable else "no", info.hardware or "-", info.reason)
    console.print(table)
    for line in _env.unknown_settings():
        console.print(f"warning: {line}", markup=False)
    try:
        spec, _ = registry.select()
        console.print(f"a session started here gets backend {spec.name!r}", markup=False)
    except BackendError as error:
        console.print(f"a session started here fails: {error}", markup=False)
        raise


@app.command()
def hang(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder with the ranks' flight records.")],
) -> None:
    """Say from the flight records of a job which rank is behind, at which call, and which ranks wait for it."""
    from accel import _hang

    for line in _hang.explain(_hang.read(folder)):
        rich.get_console().print(line, markup=False, highlight=False, soft_wrap=True)
