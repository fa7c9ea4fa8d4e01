"""Records of proofs: JSON files under docs/proofs, with date and versions."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from accel import _probe

PROOFS = Path(__file__).parents[2] / "docs" / "proofs"


def write(name: str, **fields: Any) -> None:
    """Write docs/proofs/NAME.json in the place of an earlier one."""
    versions = _probe.versions("torch", "numpy")
    head = {"date": f"{datetime.now(timezone.utc):%Y-%m-%d}", "versions": versions}
    (PROOFS / f"{name}.json").write_text(json.dumps({**head, **fields}, indent=1) + "\n")
