"""How each reduction and move of each dtype is carried: as it is, in another form, or not at all.

One pure function a question, `reduction` and `move`, asked by `accel.collective` for every call and by `cells` for
the capability table, so behaviour, table and documentation cannot differ. Owns the widening, NaN, bool, complex and
byte rules. A transport only says what it carries and reduces natively, and floating min and max count as native only
where a NaN on any rank reaches every rank.

Rules: mean of fp16 and bf16 is summed in fp32 and then divided, so 60000 + 60000 does not overflow and 6e-8 is not
flushed; mean of integers and bool is refused; small integers that the fabric lacks widen and are cast back, wrapping
as torch does; bool sum is OR, bool product is AND; min and max keep NaN; dtypes that the fabric does not know move as
bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch

from accel.capabilities import Capability, Support, emulated, native, unsupported
from accel.errors import AccelError, TensorError, UnsupportedError
from accel.transport import REDUCE_OPS, Transport

REDUCTIONS = ("all_reduce", "reduce_scatter")
MOVES = ("broadcast", "all_gather", "all_to_all", "send", "recv")

Native = Mapping[str, frozenset[torch.dtype]]

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_COMPLEX = (torch.complex64, torch.complex128)  # complex32 is an experiment of torch: refused
_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz)
_WIDER = {
    torch.uint8: (torch.int16, torch.int32, torch.int64),
    torch.int8: (torch.int16, torch.int32, torch.int64),
    torch.int16: (torch.int32, torch.int64),
    torch.uint16: (torch.int32, torch.int64),
    torch.int32: (torch.int64,),
    torch.uint32: (torch.int64,),
    torch.int64: (),
}
DTYPES = (torch.bool, *_WIDER, torch.uint64, *_FLOATS, *_COMPLEX, *_FLOAT8)
_BOOL_AS = {"sum": "max", "product": "min", "min": "min", "max": "max"}


class Plan(NamedTuple):
    """How one dtype travels. `encode` makes the wire tensor from a dense one (it may share its memory, and may add
    trailing dimensions); `decode` makes values of the caller's dtype from the wire result and the group's size. None:
    unchanged.
    """

    cell: Capability
    op: str = ""  # reduction on the wire; empty for a move
    encode: Callable[[torch.Tensor], torch.Tensor] | None = None
    decode: Callable[[torch.Tensor, int], torch.Tensor] | None = None
    error: type[AccelError] = UnsupportedError


def reduction(op: str, dtype: torch.dtype, reductions: Native) -> Plan:
    """Plan for reducing `dtype` with `op` where the fabric reduces `reductions[op]` natively."""
    integer = dtype in _WIDER or dtype in (torch.bool, torch.uint64)
    if op == "mean" and integer:
        return _refused(
            f"the mean of {_name(dtype)} has no exact result; convert to a floating dtype or use 'sum'", TensorError
        )
    if op == "mean" and dtype in (torch.float16, torch.bfloat16):
        return _through(
            torch.float32, op, dtype, reductions, "summed in float32, then divided, so that it cannot overflow"
        )
    if dtype in reductions.get(op, frozenset()):
        return Plan(native("reduced by the fabric as it is"), op)
    if dtype is torch.bool:
        return _through(torch.uint8, _BOOL_AS[op], dtype, reductions, "as uint8; sum is OR, product is AND")
    if dtype is torch.uint64:
        return _uint64(op, reductions)
    if integer:
        return _widened(op, dtype, reductions)
    if dtype in _COMPLEX:
        return _complex(op, dtype, reductions)
    if dtype in _FLOATS:
        return _floating(op, dtype, reductions)
    return _refused(f"{_name(dtype)} is moved, not reduced; convert to a wider dtype first", TensorError)


def move(dtype: torch.dtype, dtypes: frozenset[torch.dtype]) -> Plan:
    """Plan for moving `dtype` unchanged where the fabric carries `dtypes`."""
    if dtype in dtypes:
        return Plan(native("carried by the fabric as it is"))
    if dtype in _COMPLEX and dtype.to_real() in dtypes:
        return Plan(
            emulated("as pairs of real numbers"),
            encode=torch.view_as_real,
            decode=lambda w, _: torch.view_as_complex(w),
        )
    if torch.uint8 not in dtypes:
        return _refused(f"the fabric carries neither {_name(dtype)} nor bytes")
    if dtype not in DTYPES:
        return _refused(f"{_name(dtype)} is not a plain dtype; convert it first", TensorError)
    return Plan(
        emulated("carried as bytes"),
        encode=lambda t: t.unsqueeze(-1).view(torch.uint8),
        decode=lambda w, _: w.view(dtype).squeeze(-1),
    )


def cells(transport: Transport) -> dict[str, Capability]:
    """The dtype table in capability terms: "all_reduce.mean.float16", "broadcast.int16" and so on."""
    table: dict[str, Capability] = {}
    for dtype in DTYPES:
        for op in REDUCE_OPS:
            cell = reduction(op, dtype, transport.native_reductions).cell
            table.update({f"{kind}.{op}.{_name(dtype)}": cell for kind in REDUCTIONS})
        cell = move(dtype, transport.native_dtypes).cell
        table.update({f"{kind}.{_name(dtype)}": cell for kind in MOVES})
    return table


def _floating(op: str, dtype: torch.dtype, reductions: Native) -> Plan:
    if op == "mean":
        return _wrap(reduction("sum", dtype, reductions), "summed, then divided by the group size", None, _divide)
    if dtype in (torch.float16, torch.bfloat16):
        return _through(torch.float32, op, dtype, reductions, "in float32, cast back")
    if op in ("min", "max"):
        return _nan_keeping(op, dtype, reductions)
    return _refused(f"the fabric does not reduce {_name(dtype)} with {op!r}")


def _nan_keeping(op: str, dtype: torch.dtype, reductions: Native) -> Plan:
    """Order-preserving integers: IEEE bits, lower ones flipped where negative; NaN becomes the extreme that wins."""
    bits, shift = (torch.int32, 31) if dtype is torch.float32 else (torch.int64, 63)
    limits = torch.iinfo(bits)
    nan = limits.max if op == "max" else limits.min

    def encode(t: torch.Tensor) -> torch.Tensor:
        return _flip(t.view(bits)).masked_fill_(t.isnan(), nan)

    def decode(wire: torch.Tensor, _: int) -> torch.Tensor:
        return _flip(wire).view(dtype)

    def _flip(value: torch.Tensor) -> torch.Tensor:
        return value ^ ((value >> shift) & limits.max)

    return _wrap(
        reduction(op, bits, reductions),
        f"as order-preserving {_name(bits)}, so that NaN reaches every rank",
        encode,
        decode,
    )


def _widened(op: str, dtype: torch.dtype, reductions: Native) -> Plan:
    for wider in _WIDER[dtype]:
        if wider in reductions.get(op, frozenset()):
            return _through(wider, op, dtype, reductions, f"in {_name(wider)}, cast back; wraps as torch does")
    return _refused(f"the fabric reduces neither {_name(dtype)} nor a wider integer with {op!r}")


def _uint64(op: str, reductions: Native) -> Plan:
    """Sums and products wrap alike whatever the sign means; for min and max the sign bit is flipped to keep the
    order.
    """
    sign = torch.iinfo(torch.int64).min if op in ("min", "max") else 0
    return _wrap(
        reduction(op, torch.int64, reductions),
        "as int64 of the same bits",
        lambda t: t.view(torch.int64) ^ sign,
        lambda w, _: (w ^ sign).view(torch.uint64),
    )


def _complex(op: str, dtype: torch.dtype, reductions: Native) -> Plan:
    if op not in ("sum", "mean"):
        return _refused(
            f"{op!r} of complex numbers is not a sum of parts; reduce real and imaginary parts yourself", TensorError
        )
    return _wrap(
        reduction(op, dtype.to_real(), reductions),
        "as pairs of real numbers",
        torch.view_as_real,
        lambda w, _: torch.view_as_complex(w),
    )


def _through(wire: torch.dtype, op: str, dtype: torch.dtype, reductions: Native, why: str) -> Plan:
    return _wrap(reduction(op, wire, reductions), why, lambda t: t.to(wire), lambda w, _: w.to(dtype))


def _wrap(
    inner: Plan,
    why: str,
    encode: Callable[[torch.Tensor], torch.Tensor] | None,
    decode: Callable[[torch.Tensor, int], torch.Tensor],
) -> Plan:
    """`inner` with one more step before and after it; unsupported where `inner` is."""
    if inner.cell.support is Support.UNSUPPORTED:
        return inner
    first, second = encode, inner.encode
    both = (lambda t: second(first(t))) if first and second else first or second

    def undo(wire: torch.Tensor, size: int) -> torch.Tensor:
        return decode(inner.decode(wire, size) if inner.decode else wire, size)

    return Plan(emulated(why), inner.op, both, undo)


def _divide(wire: torch.Tensor, size: int) -> torch.Tensor:
    return wire.div_(size)


def _refused(why: str, error: type[AccelError] = UnsupportedError) -> Plan:
    return Plan(unsupported(why), error=error)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
