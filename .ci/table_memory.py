"""Write a lane's part of docs/tables/memory.md: each memory figure, where it comes from or why there is none.

    python .ci/table_memory.py LANE [--check]

LANE is a backend; `cuda` and `tpu` have no hardware in a lane, so theirs is what their code declares, and runs in any
environment with torch. `--check` writes nothing and exits with 1 where the committed part differs.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TABLES = ROOT / "docs" / "tables"
LANES = {
    "cpu": "cpu",
    "cuda": "cuda (declared, not run)",
    "npu": "npu (emulated)",
    "xla": "xla (PJRT's CPU client)",
}
CELLS = {  # what is no figure, by the capability table's name
    "peak reset": "memory.peak_reset",
    "track()": "memory.track",
    "a step's course and its plot": "memory.course",
    "snapshot()": "memory.snapshot",
    "limit()": "memory.limit",
    "out of memory is an error": "memory.oom",
}


def part(lane: str) -> dict[str, str]:
    """Each row's cell for `lane`, as the lane's environment gives it."""
    from accel.memory import FIELDS

    if lane == "cuda":
        declared: Any = importlib.import_module("accel_cuda.memory").CudaMemory
        capable: Any = importlib.import_module("accel_cuda.table").capabilities
        transport: Any = importlib.import_module("accel_cuda.transport").CudaTransport
        table = capable(transport(), (9, 0))
        found = {name: declared.sources[name] for name in FIELDS}
    else:
        import accel

        backend = accel.get_backend(lane)
        backend.device.set(0)  # a driver answers a process that has chosen its device
        stats, table = backend.memory.stats(), backend.capabilities()
        found = {
            name: f"None: {stats.reasons[name]}" if getattr(stats, name) is None else backend.memory.sources[name]
            for name in FIELDS
        }
    for name, feature in CELLS.items():
        cell = table[feature]
        found[name] = f"{'no: ' if not cell.available else ''}{cell.why}"
    return found


def render(parts: dict[str, dict[str, str]]) -> str:
    """The Markdown table of all parts."""
    lanes = [lane for lane in LANES if lane in parts]
    head = ["| figure | " + " | ".join(LANES[lane] for lane in lanes) + " |", "|---" * (len(lanes) + 1) + "|"]
    rows = [
        f"| {name} | " + " | ".join(parts[lane].get(name, "(not made yet)") for lane in lanes) + " |"
        for name in parts[lanes[0]]
    ]
    return "\n".join([*head, *rows]) + "\n"


def main(lane: str, check: bool) -> int:
    file = TABLES / f"memory-{lane}.json"
    found = part(lane)
    if check:
        same = file.exists() and json.loads(file.read_text(encoding="utf-8")) == found
        print("same" if same else f"{file.name} differs: run `python .ci/table_memory.py {lane}`")
        return 0 if same else 1
    TABLES.mkdir(exist_ok=True)
    file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    parts = {
        name: json.loads((TABLES / f"memory-{name}.json").read_text(encoding="utf-8"))
        for name in LANES
        if (TABLES / f"memory-{name}.json").exists()
    }
    (TABLES / "memory.md").write_text(render(parts), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--check" in sys.argv[2:]))
