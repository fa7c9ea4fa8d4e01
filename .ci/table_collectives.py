"""Writes a lane's part of the dtype x operation table of collectives, and renders the table from all parts.

`python .ci/table_collectives.py LANE`, in the lane's environment, writes docs/tables/collectives-LANE.json from what
that backend's own capability table says, and docs/tables/collectives.md from every part that is there.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

TABLES = Path(__file__).parent.parent / "docs" / "tables"
LANES = ("cpu", "cuda", "npu", "xla", "tpu")
OPS = ("sum", "mean", "min", "max", "product")
MOVED = {"moved": "broadcast", "sent": "send"}  # all_gather and all_to_all are as broadcast, recv as send


def part(lane: str) -> dict[str, Any]:
    """What the backend's capability table says: {"fabric": name, "cells": {cell: [support, why]}}."""
    from accel._lowering import MOVES, REDUCTIONS

    table: Any
    if lane == "cuda":  # neither needs a chip to say what its fabric carries
        from accel_cuda.table import capabilities as of_cuda
        from accel_cuda.transport import CudaTransport

        transport: Any = CudaTransport()
        table = of_cuda(transport, (9, 0))
    elif lane == "tpu":
        from accel_tpu.table import capabilities as of_tpu
        from accel_tpu.transport import TpuTransport

        transport = TpuTransport()
        table = of_tpu(transport)
    else:
        import accel

        backend = accel.get_backend(lane)
        transport, table = backend.transport, backend.capabilities()
    kinds = (*REDUCTIONS, *MOVES)
    chosen = {name: table[name] for name in table if name.partition(".")[0] in kinds}
    return {"fabric": transport.name, "cells": {name: [cell.support.value, cell.why] for name, cell in chosen.items()}}


def render(parts: dict[str, dict[str, Any]]) -> str:
    """One table a backend: a row a dtype, a column a reduction and a kind of move, and what the numbers mean."""
    lines = ["<!-- written by .ci/table_collectives.py -->", ""]
    for lane, said in parts.items():
        cells, notes = said["cells"], dict[str, int]()
        dtypes = [name.rpartition(".")[2] for name in cells if name.startswith("all_reduce.sum.")]
        lines += [
            f"### `{lane}`: {said['fabric']}",
            "",
            f"| dtype | {' | '.join((*OPS, *MOVED))} |",
            "|---" * (1 + len(OPS) + len(MOVED)) + "|",
        ]
        for dtype in dtypes:
            row = [cells[f"all_reduce.{op}.{dtype}"] for op in OPS]
            row += [cells[f"{kind}.{dtype}"] for kind in MOVED.values()]
            shown = []
            for support, why in row:
                alike = re.sub(
                    rf"'(?:{'|'.join(OPS)})' of complex", "this of complex", re.sub(rf"\b{dtype}\b", "it", why)
                )
                known = support == "native"
                shown.append(support if known else f"{support} {notes.setdefault(alike, len(notes) + 1)}")
            lines.append(f"| {dtype} | {' | '.join(shown)} |")
        lines += ["", *(f"{number}. {why}" for why, number in notes.items()), ""]
    return "\n".join(lines)


def read() -> dict[str, dict[str, Any]]:
    """The parts that are there, by lane."""
    files = {lane: TABLES / f"collectives-{lane}.json" for lane in LANES}
    return {lane: json.loads(file.read_text()) for lane, file in files.items() if file.exists()}


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] not in LANES:
        sys.exit(f"usage: python .ci/table_collectives.py LANE, where LANE is one of {', '.join(LANES)}")
    TABLES.mkdir(parents=True, exist_ok=True)
    written = json.dumps(part(sys.argv[1]), indent=1) + "\n"
    (TABLES / f"collectives-{sys.argv[1]}.json").write_text(written)
    (TABLES / "collectives.md").write_text(render(read()))


if __name__ == "__main__":
    main()
