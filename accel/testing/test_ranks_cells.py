"""Contract of the dtype x operation table between two ranks: each of its cells gives the right values, or is refused
with a typed error before anything is sent.

The expected values are written out here, so that a cell cannot agree with itself. The docs publish the same table
(`.ci/table_collectives.py`).
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from accel._lowering import DTYPES, MOVES, REDUCTIONS
from accel.errors import AccelError, TensorError, UnsupportedError
from accel.testing.ranks import RankPool
from accel.testing.training import init
from accel.transport import REDUCE_OPS

# What the two ranks give, and what each reduction makes of it: two rows, so that it can be dealt out.
GIVEN = ([[1.0, 2.0], [3.0, 0.0]], [[2.0, 2.0], [0.0, 0.0]])
REDUCED = {
    "sum": [[3.0, 4.0], [3.0, 0.0]],
    "mean": [[1.5, 2.0], [1.5, 0.0]],
    "min": [[1.0, 2.0], [0.0, 0.0]],
    "max": [[2.0, 2.0], [3.0, 0.0]],
    "product": [[2.0, 4.0], [0.0, 0.0]],
}
LOGICAL = {  # of bool, where sum is OR and product is AND
    "sum": [[1.0, 1.0], [1.0, 0.0]],
    "min": [[1.0, 1.0], [0.0, 0.0]],
    "max": [[1.0, 1.0], [1.0, 0.0]],
    "product": [[1.0, 1.0], [0.0, 0.0]],
}


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def cell_names() -> set[str]:
    """The cells that every backend's table has."""
    reduced = {f"{kind}.{op}.{name_of(d)}" for kind, op, d in itertools.product(REDUCTIONS, REDUCE_OPS, DTYPES)}
    return reduced | {f"{kind}.{name_of(d)}" for kind, d in itertools.product(MOVES, DTYPES)}


def _plain(t: torch.Tensor) -> Any:
    wide = t.cpu()
    return wide.to(torch.complex128).real.tolist() if wide.is_complex() else wide.to(torch.float64).tolist()


def _call(c: Any, kind: str, op: str, t: torch.Tensor) -> tuple[Any, bool]:
    """What came out on this rank, and whether an operation that is in place gave its input back."""
    if kind == "all_reduce":
        out = c.all_reduce(t, op).result()
        return _plain(t), out is t
    if kind == "reduce_scatter":
        return _plain(c.reduce_scatter(t, op).result()), True
    if kind == "broadcast":
        out = c.broadcast(t, 1).result()
        return _plain(t), out is t
    if kind in ("send", "recv"):
        work = c.send(t, 1) if c.rank == 0 else c.recv(t, 0)
        return _plain(work.result()), work.result() is t
    return _plain(getattr(c, kind)(t).result()), True


def _cells(name: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with init(name) as s:
        table, c = s.backend.capabilities(), s.backend.collective
        for cell in sorted(cell_names() - {f"recv.{name_of(d)}" for d in DTYPES}):  # tested with the sends
            kind, *op, dtype = cell.split(".")
            try:
                t = torch.tensor(GIVEN[s.rank]).to(getattr(torch, dtype)).to(s.device)
            except (RuntimeError, TypeError) as error:
                found[cell] = ("no such tensor", str(error)[:80], table[cell].available)
                continue
            before = t.clone().cpu()
            try:
                found[cell] = ("value", *_call(c, kind, op[0] if op else "", t), table[cell].available)
            except AccelError as error:
                untouched = torch.equal(t.cpu().view(torch.uint8), before.view(torch.uint8))
                typed = isinstance(error, (TensorError, UnsupportedError))
                found[cell] = ("refused", untouched and typed, table[cell].available)
    return found


def _expected(kind: str, op: str, dtype: str, rank: int) -> Any:
    def cast(rows: Any) -> Any:
        return [[float(bool(v)) for v in row] for row in rows] if dtype == "bool" else rows

    if op:
        rows = (LOGICAL if dtype == "bool" else REDUCED)[op]
        return rows if kind == "all_reduce" else rows[rank : rank + 1]
    first, second = cast(GIVEN[0]), cast(GIVEN[1])
    return {
        "broadcast": second,
        "all_gather": [first, second],
        "all_to_all": [first[rank], second[rank]],
        "send": first,
    }[kind]


def test_every_cell_of_the_table_is_right_or_refused_before_sending(
    ranks: RankPool, backend_name: str
) -> None:  # T05, T06, T23, T46
    for rank, found in enumerate(ranks.run(_cells, backend_name, timeout=150)):
        assert set(found) == {cell for cell in cell_names() if not cell.startswith("recv.")}
        values = 0
        for cell, (how, *said, available) in found.items():
            kind, *op, dtype = cell.split(".")
            assert available is (how == "value"), (cell, how, said)
            if how == "value":
                assert said == [_expected(kind, op[0] if op else "", dtype, rank), True], cell
                values += 1
            elif how == "refused":
                assert said == [True], f"{cell}: not a typed error, or a refused input changed"
        assert values > 100


def test_the_table_has_every_cell_and_receives_as_it_sends(backend: Any) -> None:
    table = backend.capabilities()
    kinds = (*REDUCTIONS, *MOVES)
    assert {cell for cell in table if cell.split(".")[0] in kinds} == cell_names()
    for dtype in map(name_of, DTYPES):
        assert table[f"recv.{dtype}"] == table[f"send.{dtype}"]
        for op in REDUCE_OPS:
            assert table[f"all_reduce.{op}.{dtype}"] == table[f"reduce_scatter.{op}.{dtype}"]
    for integer in ("bool", "int8", "int16", "int32", "int64", "uint8"):
        assert not table[f"all_reduce.mean.{integer}"].available  # T06
