"""`accel doctor`: what this machine has, which backends can be used and why, and which one a session would get."""

from __future__ import annotations

import platform

import rich
from rich.table import Table

from accel import _env, _probe, registry
from accel.errors import BackendError


def doctor() -> None:
    """Say which backends can be used here and why, and which one a session would get."""
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
