"""The committed table of collectives against what a lane's backend says; each lane has a test that calls this."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parent.parent / ".ci" / "table_collectives.py"
STALE = "run `python .ci/table_collectives.py {}` in the lane's environment, and commit what it writes"


def script() -> Any:
    spec = importlib.util.spec_from_file_location("table_collectives", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_collectives(lane: str) -> None:
    """The lane's committed part is what its backend says, and the rendered table is made of the committed parts."""
    tables = script()
    parts = tables.read()
    assert set(parts) == set(tables.LANES), STALE.format("LANE")
    assert parts[lane] == tables.part(lane), STALE.format(lane)
    assert (tables.TABLES / "collectives.md").read_text() == tables.render(parts), STALE.format(lane)
