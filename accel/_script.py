"""Running a user's script as a main program where Python's own `runpy` cannot: in a thread, beside others that do.

A replica may be a thread (XLA's on PJRT's CPU client); each gets a module of its own, so that the scripts' globals do
not meet.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path


def run(script: str, args: list[str], *, looked_up: bool) -> None:
    """Run the file `script` with `args` as the program's; `looked_up`: pickle finds the script's classes in this one.

    `sys.argv` and `sys.path` belong to the process: all replicas set the same.
    """
    sys.argv = [script, *args]
    own = types.ModuleType("__main__")
    own.__file__ = script
    folder = str(Path(script).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    if looked_up:
        sys.modules["__main__"] = own
    exec(compile(Path(script).read_bytes(), script, "exec"), vars(own))  # noqa: S102 - the user's own script
