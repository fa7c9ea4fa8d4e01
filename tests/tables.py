"""The committed tables of docs/tables against what a lane's backend says; each lane has tests that call this."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
STALE = "run `python .ci/table_{}.py {}` in the lane's environment, and commit what it writes"


def script(name: str) -> Any:
    """The module of `.ci/table_NAME.py`."""
    spec = importlib.util.spec_from_file_location(f"table_{name}", ROOT / ".ci" / f"table_{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_collectives(lane: str) -> None:
    """The lane's committed part is what its backend says, and the rendered table is made of the committed parts."""
    tables = script("collectives")
    parts = tables.read()
    assert set(parts) == set(tables.LANES), STALE.format("collectives", "LANE")
    assert parts[lane] == tables.part(lane), STALE.format("collectives", lane)
    assert (tables.TABLES / "collectives.md").read_text() == tables.render(parts), STALE.format("collectives", lane)


def check_dtypes(lane: str) -> None:
    """The lane's committed part is what a traced step runs in, and the rendered table is made of the parts."""
    table = script("dtypes")
    assert table.measured(lane) == table.committed(lane), STALE.format("dtypes", lane)
    assert (ROOT / "docs" / "tables" / "dtypes.md").read_text() == table.render()


def check_memory(lane: str) -> None:
    """The lane's committed part is what its memory figures give; in a process of its own, as a user makes it."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, ".ci/table_memory.py", lane, "--check"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr + STALE.format("memory", lane)
