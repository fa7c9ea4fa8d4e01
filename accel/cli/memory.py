"""`accel memory`: the memory figures of a device, what each means and where it comes from."""

from __future__ import annotations

from typing import Annotated

import rich
import typer


def memory(
    index: Annotated[int | None, typer.Option(help="Device; the current one by default.")] = None,
) -> None:
    """Show the memory figures of the backend that a session would get, and where each comes from."""
    from accel import _memory_summary, get_backend

    backend = get_backend()
    chosen = backend.device.checked(index)
    backend.device.set(chosen)  # a driver answers a process that has chosen its device
    console = rich.get_console()
    console.print(f"backend {backend.name} ({backend.origin}), device {chosen}")
    console.print(_memory_summary.table(backend.memory, chosen))
