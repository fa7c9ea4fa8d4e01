"""`accel bench overhead`: what a library adds to a training step, on a model so small that only overhead shows.

A hand-written PyTorch loop, the same loop through a Session, and through HF Accelerate and Lightning Fabric where
installed, run in turns within one process: each repeat times a block of steps of every contender, in shuffled order,
and differences are taken pair by pair inside a repeat, so that a machine whose speed drifts slows all of them. All do
the same work: autocast where the precision has it, clip to norm 1, step, zero_grad, over batches that are tuples of
tensors in memory. Apart from that, each loop's host reads a step are counted.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import itertools
import logging
import platform
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from rich.table import Table
from torch import nn

import accel
from accel import _probe, rendezvous
from accel.bench._host_reads import HostReads
from accel.collective import Collective
from accel.control import ControlPlane
from accel.errors import ArgumentError

PRECISIONS = ("fp32", "bf16", "fp16")
Loop = Callable[[int], None]  # runs that many steps


@dataclass
class Overhead:
    """Microseconds a step: one median a repeat for the native loop, and paired differences to it by contender."""

    precision: str
    world_size: int
    native: list[float] = field(default_factory=list)
    added: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)  # contender -> why it did not run
    # By contender, the native loop included: how often a step makes the host wait for a value of the device.
    host_reads: dict[str, float] = field(default_factory=dict)

    def interval(self, name: str, seed: int = 0) -> tuple[float, float, float]:
        """Median paired difference of `name` and its 95 % bounds, by bootstrap over repeats."""
        values = self.added[name]
        draw = random.Random(seed)
        medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(2000))
        return statistics.median(values), medians[int(0.025 * 2000)], medians[int(0.975 * 2000)]


def table(results: Sequence[Overhead]) -> Table:
    """Microseconds a step, for the terminal: the native loop, and what each contender adds to it."""
    columns = ("what", "ranks", "loop", "us a step or call", "95 % interval", "host reads a step")
    shown = Table(*columns, title="Overhead of a training step")
    for result in results:
        head = (result.precision, str(result.world_size))
        reads = {name: f"{count:g}" for name, count in result.host_reads.items()}
        shown.add_row(*head, "native PyTorch", f"{statistics.median(result.native):.0f}", "", reads.get("native", ""))
        for name in result.added:
            middle, low, high = result.interval(name)
            shown.add_row(*head, name, f"{middle:+.1f}", f"{low:+.1f} to {high:+.1f}", reads.get(name, ""))
        for name, reason in result.missing.items():
            shown.add_row(*head, name, "not run", reason)
    return shown


def record(results: Sequence[Overhead]) -> dict[str, Any]:
    """The results as plain data for a JSON file: microseconds a step, with versions, processor and date."""
    versions = _probe.versions("torch", "accelerate", "lightning-fabric")
    return {
        "benchmark": "overhead of a training step, us",
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {"accel": accel.__version__, "python": platform.python_version(), **versions},
        "processor": accel.get_backend("cpu").device.properties().name,
        "results": [
            {
                "precision": one.precision,
                "ranks": one.world_size,
                "repeats": len(one.native),
                "native_median": round(statistics.median(one.native), 1),
                "added": {
                    name: dict(zip(("median", "low", "high"), map(_rounded, one.interval(name)), strict=True))
                    for name in one.added
                },
                "host_reads_a_step": one.host_reads,
                "not_run": one.missing,
            }
            for one in results
        ],
    }


def _rounded(value: float) -> float:
    return round(value, 1)


class TinyModel(nn.Module):
    """Six parameters tensors and three small products: about as little as a training step can be."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out


def measure(precision: str, *, repeats: int = 60, block: int = 100, seed: int = 0) -> Overhead:
    """Time every contender in `repeats` interleaved blocks of `block` steps. Raises `ArgumentError` for values below
    1.
    """
    if precision not in PRECISIONS:
        raise ArgumentError(f"precision={precision!r}: expected one of {', '.join(PRECISIONS)}")
    for name, value in (("repeats", repeats), ("block", block)):
        if value < 1:
            raise ArgumentError(f"{name}={value}: expected an integer from 1")
    batches = _batches(64)
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(accel.init(precision=precision, clip_norm=1.0, seed=seed))
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(
            1
        )  # products this small gain nothing from more, and waking threads is not a library's overhead
        result = Overhead(precision, session.world_size)
        loops: dict[str, Loop] = {
            "native": _native(precision, batches, session),
            "accel": _session(batches, session),
        }
        for name, make in (("accelerate", _accelerate), ("fabric", _fabric)):
            reason = _why_not(name, precision, session.world_size)
            if reason is None:
                loops[name] = make(precision, batches)
            else:
                result.missing[name] = reason
        for loop in loops.values():
            loop(block)  # warm-up: optimizer state, thread pools, caches
        result.host_reads = {name: _host_reads(loop) for name, loop in loops.items()}
        gc.collect()
        gc.freeze()  # what is alive now need not be looked at again before every block
        stack.callback(gc.unfreeze)
        order, draw = list(loops), random.Random(seed)
        for _ in range(repeats):
            draw.shuffle(order)
            seconds = {name: _timed(loops[name], block) for name in order}
            micro = {name: value / block * 1e6 for name, value in seconds.items()}
            result.native.append(micro["native"])
            for name in loops:
                if name != "native":
                    result.added.setdefault(name, []).append(micro[name] - micro["native"])
    return result


def measure_calls(*, repeats: int = 60, block: int = 100, seed: int = 0) -> Overhead:
    """What each mode of checks adds to one all_reduce of 1 KiB that has passed before, beside torch.distributed's own.

    Every rank calls it. Raises `ArgumentError` where there is one rank only.
    """
    with contextlib.ExitStack() as stack:
        session = stack.enter_context(accel.init(check="first", seed=seed))
        if session.world_size == 1:
            raise ArgumentError("a collective between ranks is measured with --nproc 2 or more")
        backend, place = session.backend, rendezvous.read()
        tensor = torch.zeros(256, device=session.device)
        loops: dict[str, Loop] = {"native": _repeat(lambda: dist.all_reduce(tensor))}
        loops["check=first"] = _repeat(lambda: backend.collective.all_reduce(tensor))
        for mode in ("every", "off"):
            control = ControlPlane(backend.transport.connect(place, 60.0), place.rank, place.world_size, 60.0)
            stack.callback(control.close)
            # Joins the process group that the session has made, with a control plane and numbers of its own.
            other = Collective.connect(type(backend.transport)(), backend.device, control, timeout=60.0, check=mode)
            loops[f"check={mode}"] = _repeat(partial(other.all_reduce, tensor))
        result = Overhead("all_reduce of 1 KiB", session.world_size)
        for loop in loops.values():
            loop(block)
        order, draw = list(loops), random.Random(seed)  # one order on all ranks
        for _ in range(repeats):
            draw.shuffle(order)
            micro = {}
            for name in order:
                session.barrier()
                micro[name] = _timed(loops[name], block) / block * 1e6
            result.native.append(micro["native"])
            for name in loops:
                if name != "native":
                    result.added.setdefault(name, []).append(micro[name] - micro["native"])
    return result


def _host_reads(loop: Loop, steps: int = 10) -> float:
    reads = HostReads()
    with reads:
        loop(steps)
    return reads.count / steps


def _repeat(call: Callable[[], object]) -> Loop:
    def run(steps: int) -> None:
        for _ in range(steps):
            call()

    return run


def _timed(loop: Loop, steps: int) -> float:
    gc.collect()
    gc.disable()  # a collection inside one block would be counted as that contender's
    try:
        start = time.perf_counter()
        loop(steps)
        return time.perf_counter() - start
    finally:
        gc.enable()


def _batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(8, 16, generator=generator), torch.randint(0, 4, (8,), generator=generator)) for _ in range(count)
    ]


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = TinyModel()
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


class _Stream:
    """`steps` batches, with a length as a DataLoader has one."""

    def __init__(self, batches: list[Any], steps: int) -> None:
        self._batches, self._steps = batches, steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(itertools.cycle(self._batches), self._steps)


def _native(precision: str, batches: list[Any], session: Any) -> Loop:
    """The loop one writes by hand, with torch's own autocast, scaler, clip and DDP."""
    model, optimizer = _model()
    called: nn.Module = model
    if session.world_size > 1:
        called = nn.parallel.DistributedDataParallel(model)
    parameters = list(model.parameters())
    dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    criterion = nn.functional.cross_entropy

    def plain(steps: int) -> None:
        for x, y in _Stream(batches, steps):
            loss = criterion(called(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()

    def cast(steps: int) -> None:
        for x, y in _Stream(batches, steps):
            with torch.autocast("cpu", dtype=dtype):
                loss = criterion(called(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()

    def scaled(steps: int) -> None:
        for x, y in _Stream(batches, steps):
            with torch.autocast("cpu", dtype=dtype):
                loss = criterion(called(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    return {"fp32": plain, "bf16": cast, "fp16": scaled}[precision]


def _session(batches: list[Any], session: Any) -> Loop:
    model, optimizer = session.prepare(*_model())
    criterion = nn.functional.cross_entropy

    def run(steps: int) -> None:
        for x, y in session.batches(_Stream(batches, steps)):
            with session.autocast():
                loss = criterion(model(x), y)
            session.backward(loss)
            session.step(optimizer)

    return run


def _accelerate(precision: str, batches: list[Any]) -> Loop:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # its state is global; an earlier precision would be kept
    words = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
    accelerator = Accelerator(cpu=True, mixed_precision=words[precision])
    model, optimizer = accelerator.prepare(*_model())
    criterion = nn.functional.cross_entropy

    def run(steps: int) -> None:
        for x, y in _Stream(batches, steps):
            with accelerator.accumulate(model), accelerator.autocast():
                loss = criterion(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return run


def _fabric(precision: str, batches: list[Any]) -> Loop:
    from lightning_fabric import Fabric

    logging.getLogger("lightning_fabric").setLevel(logging.ERROR)
    words: Any = {"fp32": "32-true", "bf16": "bf16-mixed"}
    fabric = Fabric(accelerator="cpu", devices=1, precision=words[precision])
    model, optimizer = fabric.setup(*_model())
    criterion = nn.functional.cross_entropy

    def run(steps: int) -> None:
        for x, y in _Stream(batches, steps):
            with fabric.autocast():
                loss = criterion(model(x), y)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()

    def without_cast(steps: int) -> None:
        for x, y in _Stream(batches, steps):
            loss = criterion(model(x), y)
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()

    return without_cast if precision == "fp32" else run


def _why_not(name: str, precision: str, world_size: int) -> str | None:
    """Why a contender does not run; None when it can."""
    if world_size > 1:
        return "it would start a second process group in these ranks; run it with one process"
    if name == "fabric" and precision == "fp16":
        return "its 16-mixed precision does not run on a CPU"
    module = {"accelerate": "accelerate", "fabric": "lightning_fabric"}[name]
    return None if importlib.util.find_spec(module) else f"{module} is not installed"
