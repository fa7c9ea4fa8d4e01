"""`accel emulate`: run a command on emulated hardware. Each emulator is an entry point of the group `accel.emulators`
that leads to a typer application, so a third party can bring one.
"""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from accel.errors import ArgumentError

GROUP = "accel.emulators"


def emulate(
    name: Annotated[str, typer.Argument(help="What to emulate, such as npu.")],
    args: Annotated[list[str] | None, typer.Argument(help="Options of that emulator, and `-- COMMAND`.")] = None,
) -> None:
    """Run a command on emulated hardware; `accel emulate npu --help` lists the options for NPUs."""
    found = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none: reinstall accel-torch"
        raise ArgumentError(f"no emulator is called {name!r}; installed emulators: {known}")
    found[name].load()(args or [], prog_name=f"accel emulate {name}")
