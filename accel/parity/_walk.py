"""One rank of two traces, step by step in the order in which a step is computed."""

from __future__ import annotations

import math

import numpy as np

from accel.parity import _tolerance as tolerance
from accel.parity._difference import LOST, apart, projected_size, ratio, relative, size
from accel.parity._finding import Finding, hint
from accel.parity._trace import Array, Layer, State, Trace

LINEAR = frozenset({"SGD"})  # optimizers whose update is linear in the gradient
EXACT = 1e-9  # learning rates and scales are numbers of the host


class Walk:
    """`findings` are in the order of computation; `seen` holds (difference, allowed) by direction and step."""

    def __init__(self, a: Trace, b: Trace, rank: int) -> None:
        self._a, self._b, self._rank = a, b, rank
        self._mine, self._other = a.ranks[rank], b.ranks[rank]
        policies = [trace.run["numerics"]["policy"] for trace in (a, b)]
        self._policy = policies[0]
        self._same_policy = policies[0] == policies[1]
        self._operands = max(tolerance.operand_roundoff(trace.run["numerics"]) for trace in (a, b))
        self._linear = {*a.run["optimizers"], *b.run["optimizers"]} <= LINEAR
        self._by_layer: dict[str, list[int]] = {}
        for index, state in enumerate(a.states):
            self._by_layer.setdefault(state.layer, []).append(index)
        self._backward_order = self._order()
        self._place: dict[str, int] = {}  # of each module's first call, which all kinks of its later ones follow
        for index, layer in enumerate(a.layers):
            self._place.setdefault(layer.name.partition("#")[0], index)
        self._hidden = bool(a.run["unseen_kinks"] or b.run["unseen_kinks"])
        self._gradients = np.zeros(len(a.states))  # the largest difference of each gradient so far: momentum keeps it
        self.findings: list[Finding] = []
        self.seen: dict[str, list[list[tuple[float, float]]]] = {"forward": [], "backward": [], "update": []}
        self.grown: list[float] = []  # what was allowed for differences that came before, by step
        self._before = 0.0  # the largest difference so far in this step

    def take(self, step: int) -> None:
        for direction in self.seen.values():
            direction.append([])
        if step == 0:
            self._start()
        self._data(step)
        states = self._states(step)
        self._before = states.total
        self._forward(step, states)
        self._loss(step)
        reached = self._before
        self._backward(step, self._kinks(step, reached))
        self._numbers(step)
        self._update(step)
        self.grown.append(tolerance.AMPLIFY * reached)

    # -- in the order of a step ------------------------------------------------------------------------------------

    def _start(self) -> None:
        mine, other = self._mine["state"][0], self._other["state"][0]
        distance = relative(apart(mine, other), size(mine))
        for index, state in enumerate(self._a.states):
            if distance[index] > tolerance.SIGMAS * tolerance.ROUNDOFF["float32"]:
                self._found(0, "start", state.name, "", distance[index], 0.0)

    def _data(self, step: int) -> None:
        mine, other = self._mine["inputs"], self._other["inputs"]
        if not mine.size or not other.size:
            return
        ours, theirs = mine[step][~np.isnan(mine[step])], other[step][~np.isnan(other[step])]
        if ours.shape != theirs.shape:
            what = f"{len(ours)} sample(s) against {len(theirs)}"
        elif np.allclose(ours, theirs, rtol=1e-6, atol=1e-6):
            return
        else:
            elsewhere = np.isin(np.round(theirs, 9), np.round(mine[~np.isnan(mine)], 9))
            odd = int(np.sum(~np.isclose(ours, theirs, rtol=1e-6, atol=1e-6)))
            what = f"{odd} of {len(ours)} samples are others"
            what += f", {int(np.sum(elsewhere))} of them come in another step or place" if elsewhere.any() else ""
        self._add(Finding(
            step + 1, "data", "(input)", "", self._rank, math.inf, 0.0, what,
            "The order of the data differs: look at the seed of the sampler or loader, and at its epoch",
        ))  # fmt: skip

    def _forward(self, step: int, states: _States) -> None:
        mine, other = self._mine["forward"][step], self._other["forward"][step]
        distance = relative(apart(mine, other), size(mine))
        for index, (layer, theirs) in enumerate(zip(self._a.layers, self._b.layers, strict=True)):
            if self._same_policy and step == 0 and layer.dtype != theirs.dtype and not by_list(self._a, self._b, layer):
                self._add(Finding(
                    1, "forward", layer.name, layer.kind, self._rank, float(distance[index]), 0.0,
                    f"its output is {layer.dtype} against {theirs.dtype}", "The policy is the same, the dtype is not: "
                    "look for an autocast switched off, or a cast, around this layer",
                ))  # fmt: skip
            narrow = max((layer.dtype, theirs.dtype), key=lambda dtype: tolerance.ROUNDOFF.get(dtype, 0.0))
            own = tolerance.rounding(narrow, layer.terms, self._operands)
            before = max(self._before, states.layers.get(layer.name.partition("#")[0], 0.0))
            allowed = own + tolerance.AMPLIFY * before
            self._judge(step, "forward", layer.name, layer.kind, distance[index], allowed)
            self._before = max(self._before, float(distance[index]))

    def _loss(self, step: int) -> None:
        ours, theirs = float(self._mine["loss"][step]), float(self._other["loss"][step])
        if math.isnan(ours) and math.isnan(theirs):
            return
        difference = ratio(abs(ours - theirs), abs(ours)) if math.isfinite(ours - theirs) else math.inf
        allowed = tolerance.AMPLIFY * self._before + tolerance.rounding("float32", 1000, self._operands)
        self._judge(step, "forward", "(loss)", "", difference, allowed, f"{ours:.6g} against {theirs:.6g}")
        self._before = max(self._before, difference)

    def _kinks(self, step: int, reached: float) -> Array:
        """(F + 1,): by how much flips at the kinks from each call on may change what flows back to it; [F] is 0.

        `reached`: the largest difference of the forward.
        """
        mine, other = (np.nan_to_num(rows["rectified"][step]) for rows in (self._mine, self._other))
        flipped = np.mean((mine[..., 1:] - other[..., 1:]) ** 2, axis=-1)
        share = relative(flipped, np.maximum(1.0, np.minimum(mine[..., 0], other[..., 0])))
        behind, own = share[:, 0], share[:, 1]
        unseen = np.array([max(a.unseen, b.unseen) for a, b in zip(self._a.layers, self._b.layers, strict=True)])
        own += np.array([ratio(tolerance.flips(int(n), reached), max(1, int(n))) for n in unseen])
        # What lies behind a call's input comes before its own parameters, and after those of the call before.
        whole = own + np.append(behind[1:], 0.0)
        result: Array = np.append(np.cumsum(whole[::-1])[::-1], 0.0)
        if self._hidden and len(own):  # nobody knows where: at an output of the usual size, after all parameters
            elements = int(np.median([math.prod(layer.shape) for layer in self._a.layers]))
            result += ratio(tolerance.flips(elements, reached), max(1, elements))
        return np.sqrt(result)

    def _backward(self, step: int, kinks: Array) -> None:
        mine, other = self._mine["gradient"][step], self._other["gradient"][step]
        distance, norms = apart(mine, other), size(mine)
        whole = float(np.sqrt(np.sum(norms**2)))
        for index in self._backward_order:
            state = self._a.states[index]
            own = tolerance.rounding(self._narrow, state.terms, self._operands)
            before = tolerance.AMPLIFY * (self._before + float(kinks[self._place.get(state.layer, 0)]))
            if distance[index] == 0 and norms[index] == 0:
                continue  # none, or exactly zero in both
            difference = ratio(float(distance[index]), float(norms[index]) or whole)
            # What is added up may cancel: rounding is of the size of what flows through the step, not of what is left.
            allowed = own + before + ratio(own * whole, float(norms[index]) or whole)
            self._judge(step, "backward", state.name, "", difference, allowed)
            self._gradients[index] = max(self._gradients[index], min(difference, 1e9))
            self._before = max(
                self._before, ratio(float(distance[index]), max(float(norms[index]), tolerance.SLIGHT * whole))
            )
        ours, theirs = float(self._mine["grad_norm"][step]), float(self._other["grad_norm"][step])
        if math.isfinite(ours) and math.isfinite(theirs):
            allowed = tolerance.AMPLIFY * (self._before + float(kinks[0]))
            allowed += tolerance.rounding("float32", 1000, self._operands)
            difference = ratio(abs(ours - theirs), abs(ours))
            self._judge(step, "backward", "(norm)", "", difference, allowed, f"{ours:.6g} against {theirs:.6g}")

    def _numbers(self, step: int) -> None:
        """What the host decides: skips, loss scale and learning rates."""
        for name, word in (("skipped", "(skipped step)"), ("scale", "(loss scale)")):
            ours, theirs = float(self._mine[name][step]), float(self._other[name][step])
            if math.isnan(ours) and math.isnan(theirs):
                continue
            if not abs(ours - theirs) <= EXACT * abs(ours):
                self._add(Finding(
                    step + 1, "update", word, "", self._rank, math.inf, 0.0, f"{ours:g} against {theirs:g}",
                    "Look at the overflow that one run saw, and at the state that its scaler started from",
                ))  # fmt: skip
        ours_, theirs_ = self._mine["rates"][step], self._other["rates"][step]
        for group, (rate, other) in enumerate(zip(ours_, theirs_, strict=False)):
            if abs(rate - other) > EXACT * max(abs(rate), abs(other)):
                self._add(Finding(
                    step + 1, "update", f"(learning rate of group {group})", "", self._rank,
                    float(ratio(abs(rate - other), abs(rate))), EXACT, f"{rate:g} against {other:g}",
                    "Look for a scheduler's step that is missing, comes twice or earlier",
                ))  # fmt: skip

    def _update(self, step: int) -> None:
        mine, other = self._mine["state"], self._other["state"]
        change, theirs = mine[step + 1] - mine[step], other[step + 1] - other[step]
        change[:, LOST], theirs[:, LOST] = mine[step + 1][:, LOST], other[step + 1][:, LOST]
        distance, moved = apart(change, theirs), projected_size(change)
        norms = size(mine[step + 1])
        earlier = relative(apart(mine[step], other[step]), size(mine[step]))
        for index, state in enumerate(self._a.states):
            own = tolerance.rounding(state.dtype, 1, 0.0)
            if state.buffer:
                # Statistics of one layer are judged together: a mean near 0 is all rounding beside its variance.
                allowed = own + tolerance.AMPLIFY * max(self._before, float(earlier[index]))
                group = float(np.linalg.norm(norms[self._by_layer[state.layer]]))
                difference = ratio(float(apart(mine[step + 1][index], other[step + 1][index])), group)
                self._judge(step, "update", state.name, "buffer", difference, allowed)
                continue
            gradient = float(self._gradients[index])
            allowed = tolerance.AMPLIFY * max(gradient, float(np.nan_to_num(earlier[index], posinf=1.0)))
            allowed += ratio(own * float(norms[index]), float(moved[index]))
            allowed += tolerance.SIGMAS * tolerance.ROUNDOFF["float32"]
            if not self._linear:
                allowed += tolerance.AMPLIFY * math.sqrt(gradient)
            self._judge(step, "update", state.name, "", ratio(float(distance[index]), float(moved[index])), allowed)

    # -- helpers ---------------------------------------------------------------------------------------------------

    @property
    def _narrow(self) -> str:
        """The narrowest dtype that gradients pass through."""
        dtypes = {layer.dtype for trace in (self._a, self._b) for layer in trace.layers}
        return max(dtypes or {"float32"}, key=lambda dtype: tolerance.ROUNDOFF.get(dtype, 0.0))

    def _order(self) -> list[int]:
        """Parameters in the order in which backward reaches them: those of the last layer first."""
        place = {layer.name.partition("#")[0]: index for index, layer in enumerate(self._a.layers)}  # of the last call
        return sorted(
            (index for index, state in enumerate(self._a.states) if not state.buffer),
            key=lambda index: (-place.get(self._a.states[index].layer, -1), index),
        )

    def _states(self, step: int) -> _States:
        mine, other = self._mine["state"][step], self._other["state"][step]
        return _States(apart(mine, other), size(mine), self._by_layer, self._a.states)

    def _judge(
        self, step: int, direction: str, name: str, kind: str, difference: float, allowed: float, said: str = ""
    ) -> None:
        difference = float(difference)
        if math.isfinite(difference):
            self.seen[direction][-1].append((difference, allowed))
        if difference > allowed or (math.isnan(difference) and not math.isnan(allowed)):
            self._found(step, direction, name, kind, difference, allowed, said)

    def _found(
        self, step: int, direction: str, name: str, kind: str, difference: float, allowed: float, said: str = ""
    ) -> None:
        if math.isfinite(difference):
            what = f"difference {difference:.2g}, allowed {allowed:.2g}"
        else:
            what = "only one run has it, or it is finite in one run only"
        what = f"{said} ({what})" if said else what
        advice = hint(direction, kind, difference, self._policy, len(self._a.ranks))
        shown = step + 1
        self._add(Finding(shown, direction, name, kind, self._rank, float(difference), float(allowed), what, advice))

    def _add(self, finding: Finding) -> None:
        self.findings.append(finding)


def by_list(a: Trace, b: Trace, layer: Layer) -> bool:
    """Whether another dtype of `layer` is the doing of vendors' autocast lists: BatchNorm's output is fp32 where it is
    on the list and of the activations' dtype elsewhere, and computed alike (docs/tables/dtypes.md).
    """
    return bool(a.run["backend"] != b.run["backend"] and layer.kind.startswith("BatchNorm"))


class _States:
    """Relative differences of the states at one time: of all parameters together, and by layer."""

    def __init__(
        self, distance: Array, norms: Array, by_layer: dict[str, list[int]], states: tuple[State, ...]
    ) -> None:
        finite = np.where(np.isfinite(distance), distance, norms)
        parameters = [index for index, state in enumerate(states) if not state.buffer]
        self.total = _together(finite, norms, parameters)
        # Without the buffers, which are large beside parameters that begin at 0, and which no output comes from.
        own = {layer: [index for index in indices if not states[index].buffer] for layer, indices in by_layer.items()}
        self.layers = {layer: _together(finite, norms, indices) for layer, indices in own.items() if indices}


def _together(distance: Array, norms: Array, indices: list[int]) -> float:
    return ratio(float(np.linalg.norm(distance[indices])), float(np.linalg.norm(norms[indices])))
