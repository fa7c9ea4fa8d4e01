"""The trace: what one recorded run computed, as a directory that is complete or absent.

`trace.json` says what ran and names the layers and states; `rank0.safetensors`, `rank1.safetensors`, ... hold each
rank's arrays, all fp64, with S steps, F forward calls in the order of the first step, P states (parameters and
floating-point buffers) and W numbers a row (`_sketch`):

- `loss`, `grad_norm`, `scale`, `skipped`: (S,), NaN where there is none
- `rates`: (S, G), the learning rate of each parameter group before the step
- `inputs`: (S, M), one number a sample of the model's first input, NaN beyond the samples there were
- `forward`: (S, F, W), the output of each call; `rectified`: (S, F, 2, R), where the call's input and its output are
  above 0, if a ReLU made them (`Sketcher.rectified`; an input that is an earlier call's output counts there only)
- `gradient`: (S, P, W), reduced, unscaled and clipped, as the optimizer got it
- `state`: (S + 1, P, W), the first before step 1

Rows of what did not run are NaN.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from safetensors import SafetensorError

from accel import _atomic_dir
from accel.errors import ParityError

SCHEMA = 2
INDEX = "trace.json"
Array = npt.NDArray[np.float64]
ARRAYS = ("loss", "grad_norm", "scale", "skipped", "rates", "inputs", "forward", "rectified", "gradient", "state")
_FIELDS = ("schema", "width", "run", "steps", "layers", "states", "world_size")


@dataclass(frozen=True)
class Layer:
    """One call of a module in the forward of a step; a module that is called again has `#2` and so on in its name."""

    name: str
    kind: str  # the module's class
    dtype: str  # of its output
    shape: tuple[int, ...]  # of its output in the first step
    terms: int  # numbers that are added up for one element of the output
    unseen: int = 0  # elements at kinks of its own that `rectified` does not show, as those of a maximum


@dataclass(frozen=True)
class State:
    """A parameter, or a floating-point buffer."""

    name: str
    layer: str  # name of the module that owns it
    dtype: str
    shape: tuple[int, ...]
    buffer: bool
    terms: int  # numbers that are added up for one element of its gradient, over micro-batches and ranks


@dataclass(frozen=True)
class Trace:
    """A recorded run. `run` says what ran: backend, device, versions, numerics, seed, optimizers, command."""

    path: str
    run: dict[str, Any]
    steps: int
    layers: tuple[Layer, ...]
    states: tuple[State, ...]
    ranks: tuple[dict[str, Array], ...]

    @property
    def who(self) -> str:
        """One line about the run, for people."""
        run = self.run
        return (
            f"{self.path}: {run['backend']} ({run['origin']}), {run['device']}, torch {run['versions']['torch']}, "
            f"{run['numerics']['policy']}, {len(self.ranks)} rank(s), {self.steps} step(s)"
        )


def write(
    path: Path, run: dict[str, Any], layers: list[Layer], states: list[State], ranks: list[dict[str, Array]]
) -> None:
    """Write a trace to the directory `path`, in the place of an earlier one. Raises `ParityError` where it cannot."""
    index = {
        "schema": SCHEMA,
        "width": int(ranks[0]["forward"].shape[2]),
        "run": run,
        "steps": len(ranks[0]["loss"]),
        "world_size": len(ranks),
        "layers": [vars(layer) for layer in layers],
        "states": [vars(state) for state in states],
    }

    def fill(directory: Path) -> None:
        for rank, arrays in enumerate(ranks):
            _atomic_dir.write_file(_file(directory, rank), safetensors.numpy.save(arrays))
        _atomic_dir.write_file(directory / INDEX, (json.dumps(index, indent=1) + "\n").encode())

    try:
        _atomic_dir.write(path, fill)
    except OSError as error:
        raise ParityError(f"the trace cannot be written to {path}: {error}") from error


def check_destination(path: Path) -> None:
    """Raise `ParityError` for a place where a trace could not be written, before anything runs."""
    if not path.absolute().parent.is_dir():
        raise ParityError(f"--out {path}: the folder {path.absolute().parent} does not exist; make it first")
    if path.exists() and (not path.is_dir() or (any(path.iterdir()) and not (path / INDEX).is_file())):
        raise ParityError(f"--out {path}: there is something that is not a trace; give another name")


def read(path: str | Path) -> Trace:
    """Read a trace. Raises `ParityError` for one that is absent, truncated, damaged or of another schema."""
    directory = Path(path)
    try:
        index = json.loads((directory / INDEX).read_text())
    except FileNotFoundError:
        raise ParityError(
            f"{path} is not a trace: it has no {INDEX}; give a directory that `accel parity record` wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise ParityError(f"{directory / INDEX} cannot be read: {error}; record the trace again") from error
    if not isinstance(index, dict) or index.get("schema") != SCHEMA:
        found = index.get("schema") if isinstance(index, dict) else None
        raise ParityError(f"{path} has trace schema {found!r}; this version of accel reads {SCHEMA}")
    missing = [field for field in _FIELDS if field not in index]
    if missing:
        raise ParityError(f"{directory / INDEX} lacks {', '.join(missing)}: it is truncated; record the trace again")
    try:
        layers = tuple(Layer(**{**one, "shape": tuple(one["shape"])}) for one in index["layers"])
        states = tuple(State(**{**one, "shape": tuple(one["shape"])}) for one in index["states"])
        steps, width = int(index["steps"]), int(index["width"])
        ranks = tuple(_arrays(_file(directory, rank)) for rank in range(int(index["world_size"])))
    except (TypeError, KeyError, ValueError) as error:
        raise ParityError(f"{directory} is damaged ({error}); record the trace again") from error
    wanted = {
        "forward": (steps, len(layers), width),
        "rectified": (steps, len(layers), 2, width - 4),  # a count in the place of the five statistics
        "gradient": (steps, len(states), width),
        "state": (steps + 1, len(states), width),
        **dict.fromkeys(("loss", "grad_norm", "scale", "skipped"), (steps,)),
    }
    for rank, arrays in enumerate(ranks):
        for name in ARRAYS:
            shape = arrays[name].shape if name in arrays else None
            if shape is None or shape != wanted.get(name, (steps, *shape[1:])):
                raise ParityError(
                    f"{_file(directory, rank)}: array {name!r} has shape {shape}, expected "
                    f"{wanted.get(name, (steps, 'any'))}; the trace is damaged, record it again"
                )
    return Trace(str(path), index["run"], steps, layers, states, ranks)


def _file(directory: Path, rank: int) -> Path:
    return directory / f"rank{rank}.safetensors"


def _arrays(path: Path) -> dict[str, Array]:
    try:
        return safetensors.numpy.load(path.read_bytes())
    except (OSError, SafetensorError) as error:
        raise ParityError(f"{path} cannot be read: {error}; the trace is incomplete, record it again") from error
