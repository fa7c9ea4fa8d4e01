"""From a training step to a `Program`: the step is recorded on XLA's CPU client, in the same session code that trains,
and is exported at its cut instead of being run.

Owns the recording and what can go wrong in it: a value read on the host, an operation that runs there, a step that
records nothing or cuts more than once. Compiling the program is `_compiler`'s part.
"""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accel import __version__, _env
from accel._copies import moved
from accel._init import init
from accel.aot._program import Program, as_run
from accel.errors import ArgumentError, BackendError, ExportError
from accel.session import Session

Step = Callable[..., Any]
Build = Callable[[Session], tuple[Step, tuple[Any, ...]]]

# Operations whose result a host must see before it can go on, and which therefore cut a graph in two.
READS = {
    "_local_scalar_dense": "reads a value on the host (.item(), float(), print, an `if` on a tensor)",
    "equal": "compares tensors on the host (torch.equal)",
    "nonzero": "makes a shape that depends on values (nonzero, x[mask])",
    "masked_select": "makes a shape that depends on values (masked_select)",
    "_unique2": "makes a shape that depends on values (unique)",
    "unique_dim": "makes a shape that depends on values (unique)",
}
# What runs here (the optimizer's state) runs once; optimized, its graph takes minutes to compile for ResNet-50.
QUICK = {"XLA_FLAGS": "--xla_backend_optimization_level=0"}
COPIES = ("_to_copy", "copy_", "_copy_from")


def export(build: Build, *, precision: str = "fp32", replicas: int = 1, clip_norm: float | None = None) -> Program:
    """Record one optimizer step and return it as a program for the TPU compiler. Nothing of the step is run.

    `build(session)` prepares model and optimizers and returns `(step, batch)`: a function that trains one step by
    `session.backward` and `session.step`, and the tuple of its arguments. Of tensors in `batch` only shape and dtype
    matter; they may be on the meta device. `replicas` devices will run the program, each on such a batch; with more
    than one the gradients are averaged inside it. The optimizer's state is there when recording starts, so the program
    is that of any step but the first.

    Call it in a process that does nothing else on XLA, with `PJRT_DEVICE` unset or CPU; what `build` made must not be
    used afterwards. Raises `ExportError`, naming the line, for a step that reads a value on the host or runs an
    operation there, and for one that records nothing; else as `accel.init`.
    """
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 1:
        raise ArgumentError(f"export(replicas={replicas!r}): expected an int from 1, the devices that run the program")
    _choose_client()
    session = init(backend="xla", precision=precision, clip_norm=clip_norm)
    try:
        return _recorded(session, build, replicas)
    finally:
        session.close()


def _choose_client() -> None:
    """XLA's CPU client, before torch_xla loads: a TPU of this machine stays free."""
    if os.environ.get("PJRT_DEVICE", "CPU").strip().upper() != "CPU":
        raise BackendError(
            f"PJRT_DEVICE={os.environ['PJRT_DEVICE']!r}: a step is recorded on XLA's CPU client; unset it, or set CPU"
        )
    _env.set_vendor_variables({"PJRT_DEVICE": "CPU", **QUICK})


def _recorded(session: Session, build: Build, replicas: int) -> Program:
    from accel_xla import graph

    device = session.backend.device
    step, batch = _built(build, session)
    batch = moved(batch, lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype, device=session.device))
    optimizers = list(session._optimizers.values())
    if not optimizers:
        raise ExportError("build(session) prepared no optimizer: there is no training step to export")
    hooks = []
    for optimizer in optimizers:
        _settle(optimizer)
        if replicas > 1:
            hooks.append(optimizer.register_step_pre_hook(lambda o, *_: graph.average(_gradients(o), replicas)))
    device.flush()
    texts: list[str] = []

    def capture() -> None:
        texts.append(graph.recorded())

    assert session._cuts is not None
    session._cuts.divert(capture)
    vars(device)["flush"] = capture  # a step that flushes by itself: found before the method of the class
    try:
        with _NoReads(device):
            step(*batch)
        if not texts:  # the step ends without a cut, such as one that calls the optimizer itself
            capture()
        texts = [program for text in texts if (program := as_run(text))]
        if not texts:
            raise ExportError(
                "the step recorded nothing on the device: it must compute a loss from its batch with the prepared "
                "model, call session.backward(loss) and session.step(optimizer)"
            )
        if len(texts) > 1:
            raise ExportError(
                f"the step cuts its graph {len(texts)} times: call session.step once in it, and flush nowhere else"
            )
        described = session.backend.precision.describe()
    finally:
        graph.forget()  # the user may hold tensors of it, and running it would take what a step takes
        for hook in hooks:
            hook.remove()
        del step, batch, optimizers
        session._optimizers.clear()
    return Program(
        text=texts[0],
        replicas=replicas,
        policy=str(described["policy"]),
        in_force={k: v for k, v in described.items() if k not in ("policy", "switches")} | described["switches"],
        versions={"accel": __version__, "torch": torch.__version__, **session.backend.versions},
    )


def _built(build: Build, session: Session) -> tuple[Step, tuple[Any, ...]]:
    made: Any = build(session)
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], tuple)):
        raise ArgumentError(
            f"build(session) returned {type(made).__name__}; expected (step, batch): a function, and the tuple of its "
            "arguments"
        )
    return made


def _settle(optimizer: torch.optim.Optimizer) -> None:
    """One step on gradients of zero, which makes the optimizer's state: the program is then that of any later step."""
    for parameter in _parameters(optimizer):
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def _gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p.grad for p in _parameters(optimizer) if p.grad is not None]


class _NoReads(TorchDispatchMode):
    """Raises `ExportError` at an operation that would make the host wait for the device, or that runs on the host."""

    def __init__(self, device: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own has no types
        self._device = device
        self._on_host = device.fallback_operations()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        why = READS.get(name) if self._is_on_device((args, kwargs)) else None
        if name in COPIES and self._leaves_device(name, args, kwargs):
            why = "copies a tensor to the host (.cpu(), .to('cpu'), .numpy())"
        if why is not None:
            raise ExportError(
                f"{_place()}: the step {why}, which would run its graph in the middle; take that out of the step, or "
                "do it after session.step"
            )
        result = func(*args, **kwargs)
        now = self._device.fallback_operations()
        new = [name for name, times in now.items() if times > self._on_host.get(name, 0)]
        if new:
            raise ExportError(
                f"{_place()}: {', '.join(sorted(new))} runs on the host, as XLA lacks it, and cuts the graph of the "
                "step; use another operation"
            )
        return result

    def _is_on_device(self, values: Any) -> bool:
        found = False

        def note(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal found
            found |= tensor.device.type == self._device.type
            return tensor

        moved(values, note)
        return found

    def _leaves_device(self, name: str, args: Any, kwargs: Any) -> bool:
        source = args[0] if name == "_to_copy" else args[1]
        target = kwargs.get("device") if name == "_to_copy" else args[0].device
        return source.device.type == self._device.type and target is not None and target.type != self._device.type


def _place() -> str:
    """The innermost line of the stack that is neither torch's nor accel's; accel's own where there is none."""
    ours = (str(Path(torch.__file__).parent), str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"))
    stack = [frame for frame in traceback.extract_stack()[:-2] if "torch_xla" not in frame.filename]
    outside = [frame for frame in stack if not frame.filename.startswith((*ours, "<"))]
    inside = [frame for frame in stack if not frame.filename.startswith((str(Path(torch.__file__).parent), "<"))]
    frame = (outside or inside)[-1]
    return f"{frame.filename}:{frame.lineno}: {(frame.line or frame.name).strip()!r}"
