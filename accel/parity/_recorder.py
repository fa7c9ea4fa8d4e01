"""What a recorded session keeps of each step, and how it becomes a trace.

Where the device computes in fp64 a tensor becomes its row at once; elsewhere a copy is kept until the step's end and
sketched on the host, so that a lazy device's graph is not cut in its middle and no chip's narrow sums enter a trace.
Outputs come from forward hooks, gradients and states from the optimizers' own hooks: what the optimizer got, and what
it made of it.
"""

from __future__ import annotations

import functools
import math
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from accel import __version__
from accel.errors import ParityError
from accel.parity import _tolerance
from accel.parity._kinks import Kinks
from accel.parity._sketch import RECTIFIED, WIDTH, Sketcher
from accel.parity._trace import Array, Layer, State

if TYPE_CHECKING:
    from accel.session import Session, StepResult

OUTPUT = "(output)"  # the model's own, which may come from no module of it
HOST = torch.device("cpu")
Rows = dict[str, Any]  # by name: a row on the device, or a copy of the tensor


class Recorder:
    """Collects the steps of one session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        device = session.backend.device
        self._wide = device.metric_dtype is torch.float64
        self._sketcher = Sketcher(device.torch_device if self._wide else HOST)
        self._kinks = Kinks(self._sketcher, self._wide)
        self._unseen: list[str] = []  # kinks that no recorded module shows
        self._on = False  # a training forward of a recorded model is running
        self._layers: dict[str, Layer] = {}
        self._states: dict[str, tuple[State, torch.Tensor]] = {}
        self._owners: dict[str, list[int]] = {}  # module name: terms and elements of its calls in the first step
        self._optimizers: list[torch.optim.Optimizer] = []
        self._models: list[str] = []
        self._calls: dict[str, int] = {}
        self._forward: Rows = {}
        self._gradient: Rows = {}
        self._inputs: list[torch.Tensor] = []
        self._losses: list[torch.Tensor] = []
        self._done: list[dict[str, Any]] = []  # one a step
        self._before: dict[str, Array] | None = None  # states before step 1
        self._rates: list[float] = []

    @property
    def steps(self) -> int:
        return len(self._done)

    # -- what the session shows ------------------------------------------------------------------------------------

    def watch(self, model: nn.Module, optimizers: tuple[torch.optim.Optimizer, ...]) -> None:
        """Record `model` (unwrapped) and the optimizers of it from now on."""
        start = f"model{len(self._models) + 1}." if self._models else ""
        self._models.append(type(model).__name__)
        model.register_forward_pre_hook(self._begin)
        for name, module in model.named_modules():
            own = next(module.parameters(recurse=False), None) is not None
            if module is not model and (own or next(module.children(), None) is None):
                module.register_forward_hook(functools.partial(self._saw, start + name))
        model.register_forward_hook(functools.partial(self._end, start + OUTPUT))
        named = [*model.named_parameters(), *model.named_buffers()]
        parameters = {id(p) for p in model.parameters()}
        for name, tensor in named:
            if tensor.is_floating_point():
                layer, _, _ = name.rpartition(".")
                dtype, shape = _dtype(tensor), tuple(tensor.shape)
                state = State(start + name, start + layer, dtype, shape, id(tensor) not in parameters, 1)
                self._states[start + name] = state, tensor
        for optimizer in optimizers:
            self._optimizers.append(optimizer)
            optimizer.register_step_pre_hook(self._gradients)

    def loss(self, loss: torch.Tensor) -> None:
        self._losses.append(loss.detach().clone())

    def stepping(self) -> None:
        """A step may follow: the learning rates that it uses, before a scheduler moves them."""
        self._rates = [float(group["lr"]) for one in self._optimizers for group in one.param_groups if "lr" in group]

    def boundary(self, result: StepResult) -> None:
        """A window ended; the device has run it."""
        losses = [float(loss) for loss in self._losses]
        if not losses and not self._forward:
            return  # a window without a backward on any rank
        loss = math.fsum(losses) / len(losses) if losses else math.nan
        if not self._done and not math.isfinite(loss):
            raise ParityError(
                f"the loss of the first step is {loss}: nothing can be compared from there on. Look at the data and "
                "the learning rate first; under fp16 the loss itself is not scaled, so it should be finite"
            )
        state = {name: self._taken(tensor) for name, (_, tensor) in self._states.items()}
        gradient, rectified = self._numbers(self._gradient), self._kinks.take()
        if not self._done:
            self._unseen = self._kinks.unseen(sum("MaxPool" in layer.kind for layer in self._layers.values()))
        norm = math.sqrt(math.fsum(float(row[0]) ** 2 for row in gradient.values())) if gradient else math.nan
        if result.grad_norm is not None:
            norm = float(result.grad_norm)  # before clipping
        self._done.append(
            {
                "loss": loss,
                "grad_norm": norm,
                "scale": math.nan if result.loss_scale is None else float(result.loss_scale),
                "skipped": float(result.skipped),
                "rates": self._rates,
                "inputs": self._samples(),
                "forward": self._numbers(self._forward),
                "rectified": rectified,
                "gradient": gradient,
                "state": self._numbers(state),
            }
        )
        self._calls, self._forward, self._gradient, self._inputs, self._losses = {}, {}, {}, [], []

    def backward(self, loss: torch.Tensor, run: Callable[[], None]) -> None:
        """Run the backward of `loss`; activations that it computes again are no second forward."""
        self._on = False
        if not self._done and isinstance(loss, torch.Tensor):
            self._kinks.look(loss)  # the backward frees its graph
        run()

    # -- hooks -----------------------------------------------------------------------------------------------------

    def _begin(self, model: nn.Module, args: Any) -> None:
        self._on = torch.is_grad_enabled() and model.training
        if not self._on:
            return
        if self._before is None:
            self._before = self._numbers({name: self._taken(t) for name, (_, t) in self._states.items()})
        first = next((arg for arg in args if isinstance(arg, torch.Tensor) and arg.dim()), None)
        if first is not None:
            self._inputs.append(self._sketcher.samples(first) if self._wide else first.detach().clone())

    def _end(self, name: str, model: nn.Module, args: Any, output: Any) -> None:
        self._saw(name, model, args, output)
        self._kinks.end()
        self._on = False

    def _saw(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        if not self._on:
            return
        tensor = _first(output)
        if tensor is None or not tensor.is_floating_point():
            return
        self._calls[name] = call = self._calls.get(name, 0) + 1
        entry = _first(args)
        terms = 1
        if name not in self._owners or not self._done:
            terms = _tolerance.terms_of(module, tensor if entry is None else entry, tensor)
            known = self._owners.setdefault(name, [terms, 0])
            known[1] += tensor.numel()
        key = name if call == 1 else f"{name}#{call}"
        if key not in self._layers and not self._done:
            terms = 1 if name.endswith(OUTPUT) else terms
            kind = type(module).__name__
            unseen = tensor.numel() if "MaxPool" in kind else 0
            self._layers[key] = Layer(key, kind, _dtype(tensor), tuple(tensor.shape), terms, unseen)
        self._forward[key] = taken = self._taken(tensor)
        self._kinks.call(key, entry, tensor, taken)

    def _gradients(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        mine = {id(p) for group in optimizer.param_groups for p in group["params"]}
        for name, (_, tensor) in self._states.items():
            if id(tensor) in mine and tensor.grad is not None:
                self._gradient[name] = self._taken(tensor.grad)

    # -- the trace -------------------------------------------------------------------------------------------------

    def layers(self) -> list[Layer]:
        return list(self._layers.values())

    def states(self) -> list[State]:
        """With the terms of their gradients: the elements of the owner's outputs that each element meets."""
        found = []
        for state, _ in self._states.values():
            terms, elements = self._owners.get(state.layer, [1, 1])
            each = max(terms, elements // max(1, state.shape[0] if state.shape else 1)) * self._session.world_size
            found.append(State(**{**vars(state), "terms": each}))
        return found

    def arrays(self) -> dict[str, Array]:
        """This rank's part of the trace."""
        done, names = self._done, list(self._states)
        samples = max((len(step["inputs"]) for step in done), default=0)
        rates = max((len(step["rates"]) for step in done), default=0)
        single = {key: np.array([step[key] for step in done]) for key in ("loss", "grad_norm", "scale", "skipped")}
        states = [self._before or {}, *(step["state"] for step in done)]
        return {
            **single,
            "rates": np.array([_padded(step["rates"], rates) for step in done]).reshape(len(done), rates),
            "inputs": np.array([_padded(step["inputs"], samples) for step in done]).reshape(len(done), samples),
            "forward": _stacked([step["forward"] for step in done], list(self._layers)),
            "rectified": _stacked([step["rectified"] for step in done], list(self._layers), (2, RECTIFIED)),
            "gradient": _stacked([step["gradient"] for step in done], names),
            "state": _stacked(states, names),
        }

    def about(self, command: str, seed: int | None) -> dict[str, Any]:
        """What ran, for the trace's index."""
        backend = self._session.backend
        return {
            "backend": backend.name,
            "kind": backend.kind,
            "origin": backend.origin,
            "device": backend.device.properties().name,
            "versions": {
                "accel": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
                **backend.versions,
            },
            "numerics": backend.precision.describe(),
            "threads": self._session.threads.count,
            "seed": seed,
            "unseen_kinks": self._unseen,
            "accumulate": self._session.accumulate,
            "models": self._models,
            "optimizers": [type(one).__name__ for one in self._optimizers],
            "command": command,
        }

    def _taken(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._sketcher.row(tensor) if self._wide else tensor.detach().clone()

    def _numbers(self, rows: Rows) -> dict[str, Array]:
        """On the host, as rows."""
        if not rows:
            return {}
        if self._wide:
            return dict(zip(rows, torch.stack(list(rows.values())).cpu().numpy(), strict=True))
        return {name: self._sketcher.row(tensor.cpu()).numpy() for name, tensor in rows.items()}

    def _samples(self) -> list[float]:
        found: list[float] = []
        for tensor in self._inputs:
            numbers = tensor if self._wide else self._sketcher.samples(tensor.cpu())
            found += numbers.tolist()
        return found


def _first(value: Any) -> torch.Tensor | None:
    """The first tensor of a module's arguments or output."""
    if isinstance(value, torch.Tensor):
        return value
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return next((found for part in parts if (found := _first(part)) is not None), None)


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _padded(values: list[float], length: int) -> list[float]:
    return [*values, *([math.nan] * (length - len(values)))]


def _stacked(steps: list[dict[str, Array]], names: list[str], shape: tuple[int, ...] = (WIDTH,)) -> Array:
    absent = np.full(shape, np.nan)
    rows = [[step.get(name, absent) for name in names] for step in steps]
    return np.array(rows, dtype=np.float64).reshape(len(steps), len(names), *shape)
