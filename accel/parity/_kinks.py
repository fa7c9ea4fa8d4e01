"""The kinks that a backward pass goes through: which elements lie on which side of a ReLU, and kinks that nobody sees.

A derivative jumps at a kink, so that rounding that moves one element across it changes gradients by more than rounding
does. Where activations are recorded on both sides that is counted, not guessed (`Sketcher.rectified`): every output,
and inputs that no recorded module made, behind which a function such as `torch.nn.functional.relu` may lie. The rest -
maxima, absolute values, clamps - shows in autograd's graph of the loss, by name.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import torch

from accel.parity._sketch import RECTIFIED, Sketcher
from accel.parity._trace import Array

# Autograd's nodes (torch 2.9 to 2.13) whose derivative jumps; a Python Function may do anything.
_KINKED = re.compile(
    "[Rr]elu|Hard|Softshrink|Threshold|MaxPool|Max(imum)?Backward|Min(imum)?Backward|Amax|Amin|Fmax|Fmin|Abs|Clamp|Topk|"
    "Sort|Kthvalue|Median|Where|^[CS]?[Ee]lu"
)
_RELU = re.compile(r"^(Npu)?Relu_?Backward")
_PYTHON = re.compile(r"Backward$")  # of a torch.autograd.Function; torch's own nodes end in a number
_SMOOTH = ("_DDPSinkBackward",)


class Kinks:
    """What one step's forward and backward show. Keeps outputs until `end`, so that no id comes twice."""

    def __init__(self, sketcher: Sketcher, wide: bool) -> None:
        self._sketcher, self._wide = sketcher, wide
        self._rows: dict[tuple[str, int], torch.Tensor] = {}  # by call and side (0 input, 1 output): row, or a copy
        self._sources: dict[str, tuple[str, int] | None] = {}  # where a call's input was recorded
        self._known: dict[int, tuple[torch.Tensor, tuple[str, int]]] = {}
        self._nodes: dict[str, int] = {}
        self._relus = 0  # that the latest step's rows show

    def call(self, key: str, entry: torch.Tensor | None, output: torch.Tensor, taken: torch.Tensor) -> None:
        """A module's call. `taken`: a copy of `output` where the host sketches."""
        source = None
        if entry is not None and entry.is_floating_point():
            root = _root(entry)
            if id(root) in self._known:
                source = self._known[id(root)][1]
            else:
                source = key, 0
                self._rows[source] = self._sketcher.rectified(entry) if self._wide else entry.detach().clone()
                self._known[id(root)] = root, source
        self._sources[key] = source
        self._rows[key, 1] = self._sketcher.rectified(output) if self._wide else taken
        self._known[id(_root(output))] = _root(output), (key, 1)  # also of one that was changed in place

    def end(self) -> None:
        """The forward is over."""
        self._known.clear()

    def look(self, loss: torch.Tensor) -> None:
        """Count the nodes behind `loss` that may have kinks."""
        queue, met = [loss.grad_fn], set()
        while queue:
            node = queue.pop()
            if node is None or node in met:
                continue
            met.add(node)
            name = node.name()
            if _KINKED.search(name) or (_PYTHON.search(name) and name not in _SMOOTH):
                self._nodes[name] = self._nodes.get(name, 0) + 1
            queue += [following for following, _ in node.next_functions]

    def take(self) -> dict[str, Array]:
        """By call, (2, RECTIFIED) of this step: input and output."""
        found: dict[str, Array] = {key: np.zeros((2, RECTIFIED)) for key in self._sources}
        if self._wide and self._rows:
            rows = torch.stack(list(self._rows.values())).cpu().numpy()
        else:
            rows = np.array([self._sketcher.rectified(tensor.cpu()).numpy() for tensor in self._rows.values()])
        for (key, side), row in zip(self._rows, rows, strict=True):
            found[key][side] = row
        self._relus = sum(self._rectifies(key, found) for key in self._sources)
        self._rows, self._sources = {}, {}
        return found

    def unseen(self, maxima: int) -> list[str]:
        """Names of the nodes whose kinks `take` did not show and no module is known for, in the steps looked at.

        `maxima`: calls of maximum pooling.
        """
        nodes = dict(self._nodes)
        relus = sum(nodes.pop(name) for name in list(nodes) if _RELU.match(name))
        pools = sum(nodes.pop(name) for name in list(nodes) if "MaxPool" in name)
        found = sorted(nodes)
        if relus > self._relus:
            found.append(f"{relus - self._relus} ReLU")
        if pools > maxima:
            found.append(f"{pools - maxima} MaxPool")
        return found

    def _rectifies(self, key: str, found: dict[str, Any]) -> int:
        """The ReLUs that this call shows: one behind its input, one in it."""
        source = self._sources[key]
        behind = source == (key, 0) and bool(found[key][0, 0])
        before = source is not None and bool(found[source[0]][source[1], 0])
        return behind + (bool(found[key][1, 0]) and not before)


def _root(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that `tensor` is a view of, or itself."""
    base = tensor._base if tensor._is_view() else None
    return tensor if base is None else base
