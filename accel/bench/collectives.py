"""`accel bench collectives`: time the collectives of this backend over a range of sizes, as nccl-tests does.

Each size is checked for right values, warmed up, and timed in blocks of calls that end on a synchronized device. On a
fabric of torch.distributed, blocks of the same calls on the bare process group alternate with them in shuffled order.
Their ratio is taken pair by pair: many short blocks, each beside its partner, since a machine whose speed drifts slows
both, and what disturbs one of them is one ratio of many and no part of the median. Owns the measurement; sizes and
bandwidths are `bandwidth`, what is written `_collective_record`.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from accel._c10d import REDUCE, C10dTransport, all_gather_single, reduce_scatter_single
from accel.bench import bandwidth
from accel.capabilities import Capability, Support
from accel.errors import ArgumentError, TensorError, UnsupportedError
from accel.transport import REDUCE_OPS

if TYPE_CHECKING:
    from accel.session import Session

CLOCK = (
    "time.perf_counter on each rank around a block of calls, device synchronized before and after; the slowest rank "
    "counts; a row is the median of its blocks"
)
REDUCING = ("all_reduce", "reduce_scatter")
SMALL = 1024  # bytes of a tensor worth coalescing
CHUNK = 1 << 22  # elements that are compared at a time
COPIES = 4  # tensors of the largest size that a rank may hold at once: input, output, and two of the fabric
BLOCK = 0.02  # seconds of a block, about, where a call is shorter: a few slices of the operating system's scheduler
Call = Callable[[], Any]


@dataclass(frozen=True)
class Plan:
    """What to measure. Raises `ArgumentError` for a value that cannot be used."""

    operations: tuple[str, ...] = ("all_reduce",)
    dtypes: tuple[str, ...] = ("float32",)
    reductions: tuple[str, ...] = ("sum",)
    smallest: int = 8  # bytes
    largest: int = 1 << 30
    factor: int = 4
    calls: int = 20  # in a block, at most; one that takes longer than `BLOCK` is a block of its own
    repeats: int = 200  # blocks of each contender, at most
    warmup: int = 5  # calls before the first block
    seconds: float = 10.0  # that a row may take, about
    bare: bool = True  # compare with torch.distributed where the fabric is one of its
    coalescing: int = 100  # tensors of 1 KiB, apart and together; 0: not measured

    def __post_init__(self) -> None:
        for name, known in (("operations", bandwidth.OPERATIONS), ("reductions", REDUCE_OPS)):
            for value in getattr(self, name):
                if value not in known:
                    raise ArgumentError(f"{name} has {value!r}; expected some of {', '.join(known)}")
        for value in self.dtypes:
            if not isinstance(getattr(torch, value, None), torch.dtype):
                raise ArgumentError(f"dtypes has {value!r}; expected names of torch, such as float32 or bfloat16")
        for name, least in (("calls", 1), ("repeats", 1), ("warmup", 1), ("coalescing", 0)):
            if getattr(self, name) < least:
                raise ArgumentError(f"{name} is {getattr(self, name)}; expected at least {least}")
        if not self.seconds > 0:
            raise ArgumentError(f"seconds is {self.seconds}; expected a number above 0")
        bandwidth.sizes(self.smallest, self.largest, self.factor)


@dataclass
class Row:
    """One operation, dtype and size. Times are seconds a call, one a block, of the slowest rank."""

    operation: str
    reduction: str | None  # None where nothing is reduced
    dtype: str
    size: int  # bytes, S of `bandwidth`
    elements: int
    calls: int
    times: list[float]
    bare: list[float] = field(default_factory=list)  # empty where not compared
    wrong: int = 0  # elements, over all ranks

    @property
    def seconds(self) -> float:
        return statistics.median(self.times)

    def ratio(self) -> tuple[float, float, float] | None:
        """Time over the bare loop's, block by block: median and its 95 % interval; None where not compared."""
        return interval([a / b for a, b in zip(self.times, self.bare, strict=True)]) if self.bare else None

    def verdict(self) -> str | None:
        """`bandwidth.judged` of the ratio; None where not compared."""
        ratio = self.ratio()
        return None if ratio is None else bandwidth.judged(*ratio[1:])


@dataclass
class Coalescing:
    """Seconds for all `tensors`, one a block: a call each, or one coalesced call."""

    tensors: int
    size: int  # bytes of each
    apart: list[float]
    together: list[float]

    def speedup(self) -> tuple[float, float, float]:
        return interval([a / b for a, b in zip(self.apart, self.together, strict=True)])


@dataclass
class Measured:
    """Everything that one run measured, and what it could not."""

    rows: list[Row] = field(default_factory=list)
    coalescing: Coalescing | None = None
    not_run: dict[str, str] = field(default_factory=dict)  # what -> why
    warnings: list[str] = field(default_factory=list)


def interval(values: Sequence[float], seed: int = 0) -> tuple[float, float, float]:
    """Median and its 95 % bounds, by bootstrap."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(1000))
    return statistics.median(values), medians[25], medians[974]


def run(
    plan: Plan, out: str | Path, command: str, told: Callable[[Row], object], *, plot: bool = True
) -> tuple[Path, dict[str, Any]] | None:
    """Measure with all ranks of the job; write the record to the file or folder `out`, and its plot beside it.

    Path and record on rank 0, None on the others. Raises `ArgumentError` before anything is measured for what cannot
    be measured, written or drawn.
    """
    import accel
    from accel import records
    from accel.bench import _collective_record, _environment

    started = datetime.now(timezone.utc)
    record_id = records.new_id("collectives", started)
    if plot:
        _collective_record.require_plots()
    with accel.init() as session:
        path = records.destination(out, record_id) if session.is_main else Path()
        found = measure(session, plan, told if session.is_main else bool)
        machine = _environment.gather(session, {})
        if not session.is_main:
            return None
        data = _collective_record.plain(
            record_id, f"{started:%Y-%m-%dT%H:%M:%SZ}", command, session, machine, plan, found, CLOCK
        )
    written = _collective_record.write(data, path)
    if plot:
        _collective_record.plot(data, written.with_suffix(".svg"))
    return written, data


def measure(session: Session, plan: Plan, told: Callable[[Row], object]) -> Measured:
    """Measure `plan` with all ranks of `session`, which must be two or more; `told` hears of each row.

    Raises `ArgumentError` for one rank, over which nothing travels.
    """
    if session.world_size < 2:
        raise ArgumentError("collectives are measured between ranks, and this is 1: give --nproc 2 or more")
    found = Measured()
    largest = _affordable(session, plan, found)
    bench = _Bench(session, plan)
    if plan.bare and bench.group is None:
        found.not_run["bare loop"] = f"the fabric {session.backend.transport.name!r} is none of torch.distributed's"
    for operation in plan.operations:
        for reduction in plan.reductions if operation in REDUCING else (None,):
            for dtype in plan.dtypes:
                name = " ".join(part for part in (operation, reduction, dtype) if part)
                kind: torch.dtype = getattr(torch, dtype)
                wanted = bandwidth.sizes(plan.smallest, largest, plan.factor)
                try:
                    for size in dict.fromkeys(
                        bandwidth.aligned(operation, size, kind.itemsize, session.world_size) for size in wanted
                    ):
                        found.rows.append(bench.row(operation, reduction, kind, size))
                        told(found.rows[-1])
                    cell = bench.cell(operation, reduction, kind)
                    if bench.group is not None and cell.support is not Support.NATIVE:
                        found.not_run[f"bare loop of {name}"] = f"the fabric does not do this as it is: {cell.why}"
                except (UnsupportedError, TensorError) as error:  # the capability table's refusal, alike on all ranks
                    found.not_run[name] = str(error)
    if plan.coalescing:
        found.coalescing = bench.coalescing(plan.coalescing, SMALL)
    return found


class _Bench:
    """The calls of one run and their timing. `group`: the bare process group, None where it is not compared."""

    def __init__(self, session: Session, plan: Plan) -> None:
        self._session = session
        self._plan = plan
        self._collective = session.backend.collective
        self._device = session.backend.device
        self._where = self._device.torch_device
        self._order = random.Random(0)  # alike on all ranks
        self._gate = torch.zeros(1, device=self._where)
        compared = plan.bare and isinstance(session.backend.transport, C10dTransport)
        self.group: Any = dist.group.WORLD if compared else None

    def row(self, operation: str, reduction: str | None, dtype: torch.dtype, size: int) -> Row:
        elements = size // dtype.itemsize
        wrong = self._wrong(operation, reduction, dtype, elements)
        given = torch.zeros(self._given(operation, elements), dtype=dtype, device=self._where)  # zeros stay zeros
        contenders = {"accel": self._call(operation, reduction, given)}
        if self.group is not None and self.cell(operation, reduction, dtype).support is Support.NATIVE:
            contenders["bare"] = self._bare(operation, reduction, given)
        calls, times = self._time(contenders)
        name = str(dtype).removeprefix("torch.")
        return Row(operation, reduction, name, size, elements, calls, times["accel"], times.get("bare", []), wrong)

    def cell(self, operation: str, reduction: str | None, dtype: torch.dtype) -> Capability:
        """What the capability table says of an operation."""
        kind = "send" if operation == "send_recv" else operation
        parts = (kind, reduction, str(dtype).removeprefix("torch."))
        return self._session.backend.capabilities()[".".join(part for part in parts if part)]

    def coalescing(self, count: int, size: int) -> Coalescing:
        tensors = [torch.zeros(size // 4, device=self._where) for _ in range(count)]

        def apart() -> None:
            for tensor in tensors:
                self._collective.all_reduce(tensor)

        together = partial(self._collective.all_reduce_coalesced, tensors)
        _, times = self._time({"apart": apart, "together": together}, calls=1)
        return Coalescing(count, size, times["apart"], times["together"])

    def _given(self, operation: str, elements: int) -> int:
        return elements // self._collective.world_size if operation == "all_gather" else elements

    def _call(self, operation: str, reduction: str | None, t: torch.Tensor) -> Call:
        c = self._collective
        if operation == "send_recv":
            return partial(self._ring, t, torch.empty_like(t))
        if reduction is not None:
            return partial(getattr(c, operation), t, reduction)
        return partial(getattr(c, operation), t)

    def _ring(self, mine: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        """Each rank sends to the next and receives from the one before."""
        c = self._collective
        sent = c.send(mine, (c.rank + 1) % c.world_size, async_op=True)
        c.recv(theirs, (c.rank - 1) % c.world_size)
        sent.wait()
        return theirs

    def _bare(self, operation: str, reduction: str | None, t: torch.Tensor) -> Call:
        """The same work by torch.distributed's own call, results in new tensors where accel's are."""
        n, rank, group = self._collective.world_size, self._collective.rank, self.group

        def exchange(theirs: torch.Tensor) -> None:
            sent = dist.isend(t, (rank + 1) % n, group)
            dist.recv(theirs, (rank - 1) % n, group)
            assert sent is not None  # None only outside of the group
            sent.wait()

        calls: dict[str, Call] = {
            "all_reduce": lambda: dist.all_reduce(t, REDUCE[reduction or "sum"], group),
            "broadcast": lambda: dist.broadcast(t, 0, group),
            "all_gather": lambda: all_gather_single(t.new_empty(n * t.numel()), t, group),
            "reduce_scatter": lambda: reduce_scatter_single(
                t.new_empty(t.numel() // n), t, REDUCE[reduction or "sum"], group
            ),
            "all_to_all": lambda: dist.all_to_all_single(torch.empty_like(t), t, group=group),
            "send_recv": partial(exchange, torch.empty_like(t)),
        }
        return calls[operation]

    def _time(self, contenders: dict[str, Call], calls: int | None = None) -> tuple[int, dict[str, list[float]]]:
        """Calls a block, and for each contender the seconds of one call in each block, on the slowest rank."""
        plan = self._plan
        for _ in range(plan.warmup):
            for call in contenders.values():
                call()
        mine = statistics.median(self._block(call, 1) for call in list(contenders.values()) * 3)
        once = max(self._collective.all_gather_object(mine))
        calls = calls or max(min(plan.calls, int(BLOCK / once)), 1)
        round_ = once * (calls + (calls > 1)) * len(contenders)  # with the untimed call of each block
        repeats = max(min(plan.repeats, int(plan.seconds / round_)), 3)
        order, times = list(contenders), {name: list[float]() for name in contenders}
        for _ in range(repeats):
            self._order.shuffle(order)
            for name in order:
                times[name].append(self._block(contenders[name], calls))
        ranks = self._collective.all_gather_object(times)
        return calls, {name: [max(one) for one in zip(*(r[name] for r in ranks), strict=True)] for name in times}

    def _block(self, call: Call, calls: int) -> float:
        """Seconds a call. A first, untimed one brings the ranks together and out of what went before; where it would
        take as long as the block itself, an operation on one element does.
        """
        collecting = gc.isenabled()
        gc.disable()  # a collection inside one block would be counted as that contender's
        try:
            if calls > 1:
                call()
            else:
                self._collective.all_reduce(self._gate)
            self._settle()
            start = time.perf_counter()
            for _ in range(calls):
                call()
            self._settle()
            return (time.perf_counter() - start) / calls
        finally:
            if collecting:
                gc.enable()

    def _settle(self) -> None:
        self._device.flush()
        self._device.synchronize()

    def _wrong(self, operation: str, reduction: str | None, dtype: torch.dtype, elements: int) -> int:
        """Elements that do not hold what they should, over all ranks, of one call on values that every dtype holds."""
        rank, n = self._collective.rank, self._collective.world_size
        given = _values(rank, self._given(operation, elements)).to(dtype).to(self._where)
        result = self._call(operation, reduction, given)()
        flat = (result if operation == "send_recv" else result.result()).reshape(-1)
        wrong = 0
        for start in range(0, flat.numel(), CHUNK):
            stop = min(start + CHUNK, flat.numel())
            want = _expected(operation, reduction, elements, rank, n, start, stop)
            wrong += int((flat[start:stop].cpu().to(torch.float64) != want.to(dtype).to(torch.float64)).sum())
        return sum(self._collective.all_gather_object(wrong))


def _values(rank: int, stop: int, start: int = 0) -> torch.Tensor:
    """What `rank` contributes: 0 or 1, by place and rank, so that sums and products are exact in every dtype."""
    return (torch.arange(start, stop) // 3 + rank) % 2


def _expected(
    operation: str, reduction: str | None, elements: int, rank: int, n: int, start: int, stop: int
) -> torch.Tensor:
    """Elements `start` to `stop` of the result on `rank`."""
    if operation == "broadcast":
        return _values(0, stop, start)
    if operation == "send_recv":
        return _values((rank - 1) % n, stop, start)
    part = elements // n
    if operation in ("all_gather", "all_to_all"):
        places = torch.arange(start, stop)
        sender, inside = places // part, places % part
        return ((inside + (rank * part if operation == "all_to_all" else 0)) // 3 + sender) % 2
    offset = rank * part if operation == "reduce_scatter" else 0
    sides = torch.stack([_values(r, stop + offset, start + offset) for r in range(n)]).double()
    how = {"product": "prod", "min": "amin", "max": "amax"}.get(str(reduction), reduction)
    return getattr(sides, str(how))(0)  # type: ignore[no-any-return]


def _affordable(session: Session, plan: Plan, found: Measured) -> int:
    """The largest size that every rank has memory for; what it leaves out is said."""
    free = session.backend.memory.stats().free
    shared = session.local_world_size if session.backend.device.identity() is None else 1
    mine = plan.largest if free is None else free // (COPIES * shared)
    room = min(session.backend.collective.all_gather_object(mine))
    if room >= plan.largest:
        return plan.largest
    if room < plan.smallest:
        raise ArgumentError(
            f"--min-bytes is {plan.smallest}, but ranks have memory for {room} bytes a tensor only; give less"
        )
    found.warnings.append(
        f"sizes above {room} bytes were left out: a rank holds up to {COPIES} tensors of a size, and no more memory "
        "was free"
    )
    return int(room)
