"""The dtype x op table: every cell's emulation gives what torch gives, for a full fabric and for one that knows two
dtypes.
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch

from accel._lowering import DTYPES, Plan, cells, move, reduction
from accel.capabilities import Support
from accel.errors import TensorError
from accel.transport import REDUCE_OPS
from accel_cpu.transport import CpuTransport

GLOO = CpuTransport.native_reductions
POOR: Mapping[str, frozenset[torch.dtype]] = {
    op: frozenset({torch.float32, torch.int32}) if op in ("sum", "product") else frozenset({torch.int32})
    for op in REDUCE_OPS[:1] + REDUCE_OPS[2:]
}
NAN = float("nan")


def _on_wire(wires: list[torch.Tensor], op: str) -> torch.Tensor:
    """What a fabric does: reduce the wire tensors in their own dtype."""
    out = wires[0].clone()
    for wire in wires[1:]:
        assert wire.dtype is out.dtype
        if op in ("sum", "product"):
            out = out + wire if op == "sum" else out * wire
        else:
            out = torch.minimum(out, wire) if op == "min" else torch.maximum(out, wire)
    return out


def _reduce(plan: Plan, ranks: list[torch.Tensor]) -> torch.Tensor:
    assert plan.cell.available, plan.cell.why
    wires = [plan.encode(rank.contiguous()) if plan.encode else rank.clone() for rank in ranks]
    wire = _on_wire(wires, plan.op)
    return plan.decode(wire, len(ranks)) if plan.decode else wire


@pytest.mark.parametrize("fabric", [GLOO, POOR], ids=["gloo", "poor"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16], ids=str)
def test_small_integers_wrap_as_torch_does(
    dtype: torch.dtype, fabric: Mapping[str, frozenset[torch.dtype]]
) -> None:  # T46
    top = torch.iinfo(dtype).max
    values = [torch.tensor([top, 3, 0]).to(dtype), torch.tensor([top, 2, 1]).to(dtype)]
    expected = {
        "sum": torch.tensor([2 * top, 5, 1]).to(dtype),
        "product": torch.tensor([top * top, 6, 0]).to(dtype),
        "min": torch.tensor([top, 2, 0]).to(dtype),
        "max": torch.tensor([top, 3, 1]).to(dtype),
    }
    for op, want in expected.items():
        got = _reduce(reduction(op, dtype, fabric), values)
        assert got.dtype is dtype
        assert got.tolist() == want.tolist(), op


@pytest.mark.parametrize("dtype", [torch.uint32, torch.uint64], ids=str)
def test_unsigned_order_is_kept(dtype: torch.dtype) -> None:
    big = torch.iinfo(dtype).max
    ranks = [torch.tensor([big, 1], dtype=dtype), torch.tensor([2, 3], dtype=dtype)]
    assert _reduce(reduction("max", dtype, GLOO), ranks).tolist() == [big, 3]
    assert _reduce(reduction("min", dtype, GLOO), ranks).tolist() == [2, 1]
    assert _reduce(reduction("sum", dtype, GLOO), ranks).tolist() == [1, 4]


def test_bool_sum_is_or_and_product_is_and() -> None:  # T46
    ranks = [torch.tensor([True, True, False]), torch.tensor([True, False, False])]
    assert _reduce(reduction("sum", torch.bool, GLOO), ranks).tolist() == [True, True, False]
    assert _reduce(reduction("max", torch.bool, POOR), ranks).tolist() == [True, True, False]
    assert _reduce(reduction("product", torch.bool, GLOO), ranks).tolist() == [True, False, False]
    assert _reduce(reduction("min", torch.bool, POOR), ranks).tolist() == [True, False, False]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_mean_does_not_overflow_or_flush(dtype: torch.dtype) -> None:  # T05
    for value in (60000.0, 6e-8):
        rank = torch.tensor([value]).to(dtype)
        assert _reduce(reduction("mean", dtype, GLOO), [rank, rank]).equal(rank)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint64], ids=str
)
def test_mean_of_integers_is_refused_for_every_fabric(dtype: torch.dtype) -> None:  # T06
    claims_mean = {"mean": frozenset(DTYPES)}
    for fabric in (GLOO, POOR, claims_mean):
        plan = reduction("mean", dtype, fabric)
        assert plan.cell.support is Support.UNSUPPORTED
        assert plan.error is TensorError


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("op", ["min", "max"])
def test_min_and_max_keep_order_and_nan(op: str, dtype: torch.dtype) -> None:
    values = [-float("inf"), -2.5, -0.0, 0.0, 1e-3, 7.0, float("inf")]
    left = torch.tensor([*values, NAN, 1.0, NAN], dtype=dtype)
    right = torch.tensor([*reversed(values), 1.0, NAN, -NAN], dtype=dtype)
    want = (torch.minimum if op == "min" else torch.maximum)(left, right)
    for ranks in ([left, right], [right, left]):
        got = _reduce(reduction(op, dtype, GLOO), ranks)
        assert got.dtype is dtype
        assert torch.equal(got.nan_to_num(nan=123.0), want.nan_to_num(nan=123.0))


def test_complex_sums_and_averages_by_parts() -> None:
    ranks = [torch.tensor([1 + 2j, 3.0]), torch.tensor([1 - 1j, 1j])]
    assert _reduce(reduction("sum", torch.complex64, GLOO), ranks).tolist() == [2 + 1j, 3 + 1j]
    assert _reduce(reduction("mean", torch.complex64, GLOO), ranks).tolist() == [1 + 0.5j, 1.5 + 0.5j]
    assert not reduction("max", torch.complex64, GLOO).cell.available


def test_float8_moves_but_is_not_reduced() -> None:  # T46
    dtype = torch.float8_e4m3fn
    assert reduction("sum", dtype, GLOO).error is TensorError
    assert move(dtype, CpuTransport.native_dtypes).cell.support is Support.EMULATED


def test_a_dtype_wider_than_the_fabric_is_unsupported_with_a_reason() -> None:
    cell = reduction("sum", torch.float64, POOR).cell
    assert cell.support is Support.UNSUPPORTED
    assert "float64" in cell.why


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)], ids=str)
def test_bytes_bring_every_dtype_back(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    plan = move(dtype, frozenset({torch.uint8}))
    value = torch.ones(shape).to(dtype)
    wire = plan.encode(value) if plan.encode else value
    assert wire.dtype is torch.uint8
    back = plan.decode(wire, 2) if plan.decode else wire
    assert back.dtype is dtype
    assert back.shape == value.shape
    assert back.view(torch.uint8).equal(value.view(torch.uint8)) if shape else back.item() == value.item()


def test_table_has_a_reason_in_every_cell_and_agrees_with_the_plans() -> None:
    table = cells(CpuTransport())
    assert len(table) == len(DTYPES) * (2 * len(REDUCE_OPS) + 5)
    assert all(cell.why for cell in table.values())
    assert table["all_reduce.mean.float16"].support is Support.EMULATED
    assert table["all_reduce.sum.float32"].support is Support.NATIVE
    assert table["all_reduce.mean.int64"].support is Support.UNSUPPORTED
    assert table["broadcast.int16"].support is Support.EMULATED
    assert table["reduce_scatter.max.float32"] == reduction("max", torch.float32, GLOO).cell
