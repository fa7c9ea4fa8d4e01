"""The table of dtypes in docs/tables/dtypes.md: what each kind of operation runs in, by backend and policy.

    python .ci/table_dtypes.py LANE

Run in the environment of LANE (cpu, xla, npu; cuda in that of cpu, on fake tensors), it writes that lane's part to
docs/tables/dtypes-LANE.json and the table anew from all parts. The tests of each lane compare the committed part.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "tables"
LANES = ("cpu", "cuda", "npu", "xla")
POLICIES = ("fp32", "tf32", "bf16", "fp16")
SEEN_ON = {
    "cpu": "torch on a CPU",
    "cuda": "fake tensors of a CUDA device; nothing ran on a GPU",
    "npu": "the released torch_npu on an emulated CANN",
    "xla": "torch_xla on PJRT's CPU client",
}
WHY = """
- A session adds softmax, log_softmax, LayerNorm and GroupNorm to the autocast lists of CPU and XLA, which lack them,
  so that they are fp32 as on CUDA and Ascend.
- XLA's list sends BatchNorm to fp32, the others compute it in the activations' dtype with fp32 statistics: XLA rounds
  once less, between BatchNorm and what follows. It stays so: the entry is one of torch_xla's own list, which can be
  added to and not taken from, and it loses no precision.
- `loss` is `cross_entropy` inside `session.autocast()`. Where it says two dtypes, log_softmax takes the low one,
  computes in fp32 and gives fp32 to what follows. The examples write `logits.float()`, which is fp32 throughout.
- "tf32" changes no dtype: operands of products are rounded inside the chip's units.
- Parameters, their gradients, BatchNorm's statistics and the optimizer are float32 in every policy.
"""


def measured(lane: str) -> dict[str, dict[str, str]]:
    """Cells by policy, as this environment gives them; a policy that the backend refuses has its reason alone."""
    sys.path[:0] = [str(ROOT), str(ROOT / "backends")]
    if lane == "cuda":
        from tests.unit.cuda_trace.run import run_trace

        with tempfile.TemporaryDirectory() as folder:
            found = run_trace(Path(folder))
        return {policy: found[policy]["cells"] for policy in POLICIES}
    import accel
    from accel.testing.dtypes import traced

    table = accel.get_backend(lane).capabilities()
    parts: dict[str, dict[str, str]] = {}
    for policy in POLICIES:
        cell = table[f"precision.{policy}"]
        if not cell.available:
            parts[policy] = {"refused": cell.why}
            continue
        with accel.init(backend=lane, precision=policy) as session:
            parts[policy] = traced(session)
    return parts


def committed(lane: str) -> dict[str, Any]:
    """The part of `lane` under docs/tables."""
    part: dict[str, Any] = json.loads((FOLDER / f"dtypes-{lane}.json").read_text())
    return part


def render() -> str:
    """The table, from all parts there are."""
    parts = {lane: committed(lane) for lane in LANES if (FOLDER / f"dtypes-{lane}.json").exists()}
    lines = ["# Dtypes of operations, by backend and policy", ""]
    lines += ["Seen below autocast while a small model trains one step; made by `.ci/table_dtypes.py`.", ""]
    lines += [f"- {lane}: {SEEN_ON[lane]}" for lane in parts]
    for policy in POLICIES:
        columns = {lane: part[policy] for lane, part in parts.items()}
        refused = {lane: cells["refused"] for lane, cells in columns.items() if "refused" in cells}
        shown = {lane: cells for lane, cells in columns.items() if lane not in refused}
        rows = list(dict.fromkeys(row for cells in shown.values() for row in cells))
        lines += ["", f"## {policy}", "", f"| operation | {' | '.join(shown)} |", f"|---{'|---' * len(shown)}|"]
        lines += [f"| {row} | {' | '.join(cells[row] for cells in shown.values())} |" for row in rows]
        lines += ["", *(f"{lane} refuses it: {why}." for lane, why in refused.items())] if refused else []
    return "\n".join([*lines, "", "## Where they differ, and why", *WHY.rstrip().splitlines(), ""])


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1] not in LANES:
        sys.exit(f"usage: python .ci/table_dtypes.py {'|'.join(LANES)}")
    lane = sys.argv[1]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"dtypes-{lane}.json").write_text(json.dumps(measured(lane), indent=1) + "\n")
    (FOLDER / "dtypes.md").write_text(render())
    print(f"wrote {FOLDER / f'dtypes-{lane}.json'} and {FOLDER / 'dtypes.md'}")


if __name__ == "__main__":
    main()
