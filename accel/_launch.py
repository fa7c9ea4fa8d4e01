"""`Launcher`: how a collective runs - checked between ranks, encoded, sent, waited for, decoded, written back.

Owns what is in flight and whether the fabric is still usable. `accel.collective` says what each operation is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from accel._buckets import buckets
from accel._call import Call, CallWatch, Group
from accel._flight import Entry
from accel._lowering import Plan
from accel._signature import Signature
from accel._tensors import dense, flat, joined, write_back
from accel._timeout import seconds
from accel._wait import CLOSED, HandleSet, translated
from accel._words import named
from accel._work import Work
from accel.control import ControlPlane
from accel.device import Device
from accel.errors import CollectiveError
from accel.transport import Handle, Transport

Start = Callable[
    [], tuple[Handle, Callable[[], Any]]
]  # sends; gives the handle and what makes the result once it has come


class Launcher:
    """Runs calls over one transport. `joined`: whether the fabric may be used."""

    def __init__(self, transport: Transport, device: Device, control: ControlPlane, timeout: float) -> None:
        self.joined = False
        self.stuck = False  # a wait failed while its operation was in flight, where it may stay for ever
        self.transport = transport
        self.device = device
        self.control = control
        self.timeout = timeout
        self._pending: list[Work] = []

    def run(self, call: Call, start: Start, alone: Callable[[], Any]) -> Work:
        """Check, send, and wait unless the call is asynchronous. `alone`: the result where there is nothing to send."""
        limit = self.timeout if call.timeout is None else seconds(call.timeout)
        end = time.monotonic() + limit
        if not self.joined:
            self.require_joined()
        if self._pending:
            self.drain(call.tensors)
        watch = CallWatch(self, call)
        checker = call.group.checker
        if checker is not None:
            watch.begin(checker, end, early=not self.transport.queues)
        if len(call.group.ranks) == 1 or not any(map(torch.Tensor.numel, call.tensors)):
            result = alone()
            watch.sent()
            watch.over("")
            return Work(None, lambda: result, call.tensors, watch, limit)
        try:
            handle, finish = start()
        except RuntimeError:  # no context manager where nothing fails: each costs as much as a small reduction's launch
            watch.sent()
            try:
                with translated(watch.describe, watch.last_words, watch.fault):
                    raise
            except CollectiveError as known:
                watch.over(type(known).__name__)
                raise
        watch.sent()  # where a launch cannot be held up, this is done while the fabric works
        work = Work(handle, finish, call.tensors, watch, limit)
        if call.async_op:
            self._pending.append(work)
        else:
            work.complete(end)
        return work

    def reduce_gradients(self, group: Group, signature: Signature) -> Entry:
        """The entry of a reduction that the fabric is about to run inside backward, compared like any other call."""
        watch = CallWatch(self, Call(signature, (), group, False, None))
        if group.checker is not None:
            watch.begin(group.checker, time.monotonic() + self.timeout, early=True)
        assert watch.entry is not None  # a gradient reduction has several ranks
        return watch.entry

    def fused(
        self, plans: Sequence[Plan], call: Call, send: Callable[[list[torch.Tensor], str], Handle], result: Any
    ) -> Start:
        """An in-place operation on many tensors of few dtypes, each dtype in as few launches as `accel._buckets` plans.

        `plans` are those of `call.tensors`; tensors of one dtype have the same.
        """
        if len(plans) == 1:
            return partial(_alone, plans[0], call, send, result)
        if self.transport.fuses:
            return partial(self._listed, plans, call, send, result)

        def start() -> tuple[Handle, Callable[[], Any]]:
            begun = []
            for plan, targets in bucketed(plans, call.tensors):
                values = targets[0] if len(targets) == 1 else flat(targets)
                begun.append((plan, targets, encoded(plan, values)))
            handles = [send([wire], plan.op) for plan, _, wire in begun]

            def finish() -> Any:
                for plan, targets, wire in begun:
                    values = decoded(plan, wire, call.group.size)
                    if len(targets) > 1:
                        write_back(values, targets)
                    elif values is not targets[0]:  # alone in its bucket
                        targets[0].copy_(values)
                return result

            return handles[0] if len(handles) == 1 else HandleSet(handles), finish

        return start

    def _listed(
        self, plans: Sequence[Plan], call: Call, send: Callable[[list[torch.Tensor], str], Handle], result: Any
    ) -> tuple[Handle, Callable[[], Any]]:
        """The same where the fabric fuses lists itself: one launch for each pair of dtype and reduction on the wire."""
        targets = [t.detach() for t in call.tensors]
        wires = [encoded(plan, target) for plan, target in zip(plans, targets, strict=True)]
        launches: dict[tuple[torch.dtype, str], list[torch.Tensor]] = {}
        for plan, wire in zip(plans, wires, strict=True):
            if wire.numel():
                launches.setdefault((wire.dtype, plan.op), []).append(wire)
        handles = [send(together, op) for (_, op), together in launches.items()]

        def finish() -> Any:
            for plan, wire, target in zip(plans, wires, targets, strict=True):
                values = decoded(plan, wire, call.group.size)
                if values is not target:
                    target.copy_(values)
            return result

        return handles[0] if len(handles) == 1 else HandleSet(handles), finish

    def drain(self, tensors: Sequence[torch.Tensor] | None) -> None:
        """Complete operations that are over, and those that share memory with `tensors` (None: all): users may drop a
        `Work`.
        """
        if not self._pending:
            return
        storages = None if tensors is None else {_storage(t) for t in tensors}
        waiting, self._pending = self._pending, []
        while waiting:
            work = waiting.pop(0)
            if work.failed:  # its user has been told
                continue
            if storages is None or work.done() or any(_storage(t) in storages for t in work.tensors):
                try:
                    work.wait()
                except CollectiveError:
                    self._pending += waiting
                    raise
            else:
                self._pending.append(work)

    def fault(self, error: RuntimeError, ranks: Sequence[int] | None = None) -> str | None:
        """What the fabric's error means, and which of `ranks` (None: all) have left or give no sign of life; None where
        it is not the fabric's.
        """
        control = self.control
        meaning = self.transport.fault(error)
        if meaning is not None:
            absent = control.no_sign_of()
        elif any(word in str(error) for word in CLOSED):  # at once, before anybody can have missed a sign of life
            meaning = str(error).strip().partition("\n")[0]
            left = control.soon_gone(range(control.world_size) if ranks is None else ranks)
            if left:
                return f"{meaning}; {named(left)} closed its session or ended{control.last_seen(left)}"
            absent = control.silent()
            meaning = meaning if absent else None
        else:
            return None
        return f"{meaning}; no sign of {named(absent)}{control.last_seen(absent)}" if absent else meaning

    def require_joined(self) -> None:
        if self.control.world_size > 1 and not self.joined:
            raise CollectiveError(f"rank {self.control.rank} has left the fabric (destroyed): start a new session")

    def abort(self) -> None:
        """Wait for nothing that is in flight."""
        self._pending.clear()
        if self.joined:
            self.transport.abort()

    def destroy(self) -> None:
        """Finish what is in flight and leave the fabric. Harmless when called again."""
        if not self.joined:
            return
        try:
            self.drain(None)
        except CollectiveError:
            self.stuck = True
            raise
        finally:
            if self.stuck:
                self.abort()
            self.joined = False
            look = self.control.last_words  # a fabric that orders streams may tell only now that a rank has given up
            with translated(lambda: f"leaving {self.transport.name} on rank {self.control.rank}", look, self.fault):
                self.transport.destroy()


def _alone(
    plan: Plan, call: Call, send: Callable[[list[torch.Tensor], str], Handle], result: Any
) -> tuple[Handle, Callable[[], Any]]:
    """`Launcher.fused` of one tensor."""
    t = call.tensors[0]
    target = t.detach() if t.requires_grad else t
    wire = encoded(plan, target) if plan.encode else dense(target)

    def finish() -> Any:
        values = decoded(plan, wire, call.group.size) if plan.decode else wire
        if values is not target:
            target.copy_(values)
        return result

    return send([wire], plan.op), finish


def bucketed(plans: Sequence[Plan], tensors: Sequence[torch.Tensor]) -> list[tuple[Plan, list[torch.Tensor]]]:
    """What is launched together, in order: tensors of one dtype, and the plan for it; without those that are empty."""
    kinds: dict[torch.dtype, tuple[Plan, list[torch.Tensor]]] = {}
    for plan, t in zip(plans, tensors, strict=True):
        if t.numel():
            kinds.setdefault(t.dtype, (plan, []))[1].append(t.detach() if t.requires_grad else t)
    return [
        (plan, [members[index] for index in bucket])
        for plan, members in kinds.values()
        for bucket in buckets([t.nbytes for t in members])
    ]


def fused_broadcast(transport: Transport, wires: list[torch.Tensor], root: int, group: Any) -> Handle:
    """One broadcast of `wires`, which have one dtype."""
    if len(wires) == 1:
        return transport.broadcast(wires[0], root, group)
    flat, unpack = joined(wires)
    return HandleSet([transport.broadcast(flat, root, group)], unpack)


def encoded(plan: Plan, values: torch.Tensor) -> torch.Tensor:
    """The contiguous wire tensor of `values`; `values` itself where nothing needs to change."""
    wire = dense(values)
    return plan.encode(wire).contiguous() if plan.encode else wire


def decoded(plan: Plan, wire: torch.Tensor, size: int) -> torch.Tensor:
    """Values of the caller's dtype from the wire result of a group of `size`."""
    return plan.decode(wire, size) if plan.decode else wire


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)
