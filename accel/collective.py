"""`Collective`: the tensor operations between ranks, with one meaning on every backend.

Every operation returns a `Work`. In place everywhere are `all_reduce`, `broadcast`, their coalesced forms and `recv`:
they write into the caller's tensor, strided views included, and `result()` is that tensor. The others leave their
input alone and return a new tensor. Bad arguments and dtypes that cannot be carried are refused before anything is
sent. How a dtype travels is decided in `accel._lowering`, whether all ranks mean the same in `accel._checks`;
barriers and objects belong to `accel.control`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from accel._arguments import Arguments
from accel._call import Call, Group
from accel._checks import MODES, Checker
from accel._flight import Entry
from accel._launch import Launcher, decoded, encoded, fused_broadcast
from accel._lowering import Plan
from accel._signature import Signature
from accel._tensors import check_in_place, check_rows
from accel._timeout import seconds
from accel._wait import translated
from accel._work import Work
from accel.control import ControlPlane
from accel.device import Device
from accel.errors import ArgumentError, CollectiveMismatch, TensorError
from accel.transport import Handle, Transport

Time = float | timedelta | None
_PREPARED = 1000  # reductions whose signature and plan are kept, since most calls are made again and again


class Collective:
    """The ranks of a job and the operations between them. All calls belong to one thread, in the same order on every
    rank.

    timeout: seconds for every operation that is not given its own. check: "first" compares each signature between
    ranks the first time it is used, "every" each call, "off" none.
    """

    def __init__(
        self,
        transport: Transport,
        device: Device,
        control: ControlPlane,
        local_rank: int,
        timeout: float | timedelta,
        check: str,
    ) -> None:
        if check not in MODES:
            raise ArgumentError(f"check is {check!r}; expected one of {', '.join(MODES)}")
        self.rank = control.rank
        self.world_size = control.world_size
        self.local_rank = local_rank
        self.timeout = seconds(timeout)
        self._transport = transport
        self._device = device
        self._control = control
        self._check = check
        self._launcher = Launcher(transport, device, control, self.timeout)
        self._made = 0
        self._prepared: dict[tuple[str, str, torch.dtype, torch.Size], tuple[Signature, list[Plan]]] = {}
        self._args = Arguments(transport, device, self._group("world", tuple(range(self.world_size)), None), self.rank)

    @classmethod
    def connect(
        cls,
        transport: Transport,
        device: Device,
        control: ControlPlane,
        *,
        local_rank: int = 0,
        timeout: float | timedelta = 600.0,
        check: str = "first",
    ) -> Collective:
        """Join the fabric with all ranks of `control`; this rank's device must be current. Does not own `control`."""
        collective = cls(transport, device, control, local_rank, timeout, check)
        if control.world_size > 1:
            if control.watcher is not None:
                control.watcher.streams = not transport.blocks
                control.watcher.fabric = transport.flight_record
            with translated(lambda: f"connecting {transport.name} on rank {control.rank}", control.last_words):
                transport.init(control.store, control.rank, control.world_size, collective.timeout, device.torch_device)
            collective._launcher.joined = True
        return collective

    @classmethod
    def local(cls, transport: Transport, device: Device) -> Collective:
        """World size 1: the same operations and refusals, no process group, nothing sent."""
        return cls(transport, device, ControlPlane(None, 0, 1), local_rank=0, timeout=600.0, check="off")

    def all_reduce(
        self, t: torch.Tensor, op: str = "sum", group: Group | None = None, async_op: bool = False, timeout: Time = None
    ) -> Work:
        """Reduce `t` over the group, in place; `result()` is `t`. op: "sum", "mean", "min", "max", "product".

        mean divides by the group size and never overflows fp16; bool sum is OR; NaN in min and max reaches every
        rank. Raises `TensorError` (dtype, device, layout, expanded or guarded target), `ArgumentError`,
        `UnsupportedError` before sending.
        """
        return self._reduce("all_reduce", [t], t, op, group, async_op, timeout)

    def all_reduce_coalesced(
        self, tensors: Sequence[torch.Tensor], op: str = "sum", group: Group | None = None, async_op: bool = False,
        timeout: Time = None,
    ) -> Work:  # fmt: skip
        """`all_reduce` of many tensors, one launch for each dtype on the wire; `result()` is the list of them."""
        return self._reduce("all_reduce_coalesced", list(tensors), list(tensors), op, group, async_op, timeout)

    def broadcast(
        self, t: torch.Tensor, src: int = 0, group: Group | None = None, async_op: bool = False, timeout: Time = None
    ) -> Work:
        """`t` of the global rank `src`, in place on every rank of the group; `result()` is `t`."""
        return self._broadcast("broadcast", [t], t, src, group, async_op, timeout)

    def broadcast_coalesced(
        self, tensors: Sequence[torch.Tensor], src: int = 0, group: Group | None = None, async_op: bool = False,
        timeout: Time = None,
    ) -> Work:  # fmt: skip
        """`broadcast` of many tensors, one launch for each dtype on the wire; `result()` is the list of them."""
        return self._broadcast("broadcast_coalesced", list(tensors), list(tensors), src, group, async_op, timeout)

    def all_gather(
        self, t: torch.Tensor, group: Group | None = None, async_op: bool = False, timeout: Time = None
    ) -> Work:
        """`result()` has shape (group size, *t.shape), by rank. All ranks give one shape; see `gather_ragged` for
        others.
        """
        call, plan = self._moving("all_gather", t, group, async_op, timeout)
        size = call.group.size

        def start() -> tuple[Handle, Callable[[], Any]]:
            wire = encoded(plan, t.detach())
            out = wire.new_empty((size, *wire.shape))
            return self._transport.all_gather(out, wire, call.group.handle), lambda: decoded(plan, out, size)

        return self._launcher.run(call, start, lambda: t.detach().expand(size, *t.shape).clone())

    def reduce_scatter(
        self, t: torch.Tensor, op: str = "sum", group: Group | None = None, async_op: bool = False, timeout: Time = None
    ) -> Work:
        """Reduce, then deal out the first dimension: `result()` has shape (t.shape[0] // group size, *t.shape[1:])."""
        members = self._args.member(group)
        check_rows(self._args.tensor(t, "reduce_scatter"), members.size, "reduce_scatter")
        plan = self._args.reduction(op, t.dtype, "reduce_scatter")
        call = Call(Signature("reduce_scatter", op, (t.dtype,), (t.shape,)), [t], members, async_op, timeout)

        def start() -> tuple[Handle, Callable[[], Any]]:
            wire = _rows(encoded(plan, t.detach()), members.size)
            out = wire.new_empty(wire.shape[1:])
            handle = self._transport.reduce_scatter(out, wire, plan.op, members.handle)
            return handle, lambda: decoded(plan, out, members.size)

        return self._launcher.run(call, start, t.detach()[: t.shape[0] // members.size].clone)

    def all_to_all(
        self, t: torch.Tensor, group: Group | None = None, async_op: bool = False, timeout: Time = None
    ) -> Work:
        """Deal out the first dimension: part j goes to the group's j-th rank; `result()` has `t`'s shape, parts by
        sender.
        """
        call, plan = self._moving("all_to_all", t, group, async_op, timeout)
        size = call.group.size
        check_rows(t, size, "all_to_all")

        def start() -> tuple[Handle, Callable[[], Any]]:
            wire = _rows(encoded(plan, t.detach()), size)
            out = torch.empty_like(wire)
            handle = self._transport.all_to_all(out, wire, call.group.handle)
            return handle, lambda: decoded(plan, out, size).reshape(t.shape)

        return self._launcher.run(call, start, t.detach().clone)

    def send(
        self, t: torch.Tensor, dst: int, group: Group | None = None, async_op: bool = False, timeout: Time = None
    ) -> Work:
        """Send `t` to the global rank `dst`, which calls `recv` with the same shape and dtype; `result()` is `t`."""
        call, plan = self._moving("send", t, group, async_op, timeout, self._args.other(dst, "dst", group))

        def start() -> tuple[Handle, Callable[[], Any]]:
            return self._transport.send(encoded(plan, t.detach()), dst, call.group.handle), lambda: t

        return self._launcher.run(call, start, lambda: t)

    def recv(
        self, t: torch.Tensor, src: int, group: Group | None = None, async_op: bool = False, timeout: Time = None
    ) -> Work:
        """Receive from the global rank `src` into `t`; `result()` is `t`."""
        call, plan = self._moving("recv", t, group, async_op, timeout, self._args.other(src, "src", group))
        check_in_place(t, "recv")

        def receive(wires: list[torch.Tensor], _: str) -> Handle:
            return self._transport.recv(wires[0], src, call.group.handle)

        return self._launcher.run(call, self._launcher.fused([plan], call, receive, t), lambda: t)

    def gather_ragged(self, t: torch.Tensor, timeout: Time = None) -> torch.Tensor:
        """The tensors of all ranks joined along the first dimension, whose length may differ between ranks, zero
        included.
        """
        if self._args.tensor(t, "gather_ragged").dim() == 0:
            raise TensorError(
                "gather_ragged joins along the first dimension; got a tensor without one: pass t.unsqueeze(0)"
            )
        sides = self._control.all_gather_object([list(t.shape), str(t.dtype)], timeout)
        if any([shape[1:], dtype] != [list(t.shape[1:]), str(t.dtype)] for shape, dtype in sides):
            raise TensorError(
                f"gather_ragged needs one dtype and one shape after the first dimension; got {sides} by rank"
            )
        lengths = [shape[0] for shape, _ in sides]
        padded = t.new_zeros((max(lengths), *t.shape[1:]))
        padded[: t.shape[0]] = t.detach()
        rows = self.all_gather(padded, timeout=timeout).result()
        return torch.cat([row[:length] for row, length in zip(rows, lengths, strict=True)])

    def barrier(self, timeout: Time = None) -> None:
        """Return when every rank has come; `CollectiveTimeout` names those that did not. Host only: no device is
        touched.
        """
        self._control.barrier(timeout)

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """`obj` of rank `src`: plain data and CPU tensors, no pickle."""
        return self._control.broadcast_object(obj, src)

    def all_gather_object(self, obj: Any) -> list[Any]:
        """The objects of all ranks, by rank: plain data and CPU tensors, no pickle."""
        return self._control.all_gather_object(obj)

    def new_group(self, ranks: Sequence[int]) -> Group:
        """A group of some ranks. Every rank of the world calls this, in the same order; only the members use the
        group.
        """
        chosen = list(ranks)
        if not chosen or any(type(rank) is not int for rank in chosen) or len(set(chosen)) != len(chosen):
            raise ArgumentError(f"ranks is {chosen!r}; expected at least one rank, each an int and given once")
        chosen.sort()
        if chosen[0] < 0 or chosen[-1] >= self.world_size:
            raise ArgumentError(f"ranks is {chosen!r}; expected ranks from 0 to {self.world_size - 1}")
        self._launcher.require_joined()
        self._made += 1
        handle = None
        if self.world_size > 1:
            self._agree_on_ranks(chosen)
            with translated(lambda: f"new_group({chosen}) on rank {self.rank}", self._control.last_words):
                handle = self._transport.new_group(chosen, self.timeout)
        return self._group(f"{self._made}: ranks {', '.join(map(str, chosen))}", tuple(chosen), handle)

    def _agree_on_ranks(self, chosen: list[int]) -> None:
        """Raise `CollectiveMismatch` on every rank where one wants another group: a fabric that connects other ranks
        than its peers do waits for several timeouts and names nobody.
        """
        sides = [list(ranks) for ranks in self._control.all_gather_object(chosen, self.timeout)]
        if any(ranks != chosen for ranks in sides):
            told = "; ".join(f"rank {rank}: new_group({ranks})" for rank, ranks in enumerate(sides))
            raise CollectiveMismatch(
                f"ranks want different groups ({told}): every rank of the world must call new_group with the same ranks"
            )

    def reduce_gradients(self, signature: Signature) -> Entry:
        """Number, compare and record the reduction of gradients that a backward is about to run on the fabric itself;
        the caller closes the entry when it is over. Raises as any operation does.
        """
        return self._launcher.reduce_gradients(self._args.member(None), signature)

    def check_mismatch(self) -> None:
        """Raise `CollectiveMismatch` where another rank has found that ranks differ, and this one has not raised."""
        checker = self._args.member(None).checker
        if checker is not None:
            checker.check_poison()

    def abort(self, reason: str = "abort() was called") -> None:
        """Give up: ranks that wait in accel raise `CollectiveError` with `reason`; nothing in flight is waited for."""
        self._control.abort(reason)
        self._launcher.abort()

    def destroy(self) -> None:
        """Finish what is in flight and leave the fabric. Harmless when called again."""
        self._launcher.destroy()

    def _reduce(
        self, kind: str, tensors: list[Any], result: Any, op: str, group: Group | None, async_op: bool, timeout: Time
    ) -> Work:
        members = self._args.member(group)
        dtypes = self._args.targets(tensors, kind)
        if len(tensors) == 1 and isinstance(op, str):
            of = kind, op, dtypes[0], tensors[0].shape
            prepared = self._prepared.get(of)
            if prepared is None:
                plans = [self._args.reduction(op, dtypes[0], kind)]
                if len(self._prepared) == _PREPARED:
                    self._prepared.clear()
                prepared = self._prepared[of] = Signature(kind, op, dtypes, (tensors[0].shape,)), plans
            signature, plans = prepared
        else:
            planned = {dtype: self._args.reduction(op, dtype, kind) for dtype in dict.fromkeys(dtypes)}
            plans = [planned[dtype] for dtype in dtypes]
            signature = Signature(kind, op, dtypes, tuple([t.shape for t in tensors]))
        call = Call(signature, tensors, members, async_op, timeout)

        def send(wires: list[torch.Tensor], wire_op: str) -> Handle:
            return self._transport.all_reduce(wires, wire_op, members.handle)

        return self._launcher.run(call, self._launcher.fused(plans, call, send, result), lambda: result)

    def _broadcast(
        self, kind: str, tensors: list[Any], result: Any, src: int, group: Group | None, async_op: bool, timeout: Time
    ) -> Work:
        members = self._args.member(group)
        dtypes = self._args.targets(tensors, kind)
        planned = {dtype: self._args.move(dtype, kind) for dtype in dict.fromkeys(dtypes)}
        plans = [planned[dtype] for dtype in dtypes]
        root = self._args.peer(src, "src", members)
        signature = Signature(kind, "", dtypes, tuple([t.shape for t in tensors]), root)
        call = Call(signature, tensors, members, async_op, timeout)

        def send(wires: list[torch.Tensor], _: str) -> Handle:
            return fused_broadcast(self._transport, wires, root, members.handle)

        return self._launcher.run(call, self._launcher.fused(plans, call, send, result), lambda: result)

    def _moving(
        self, kind: str, t: Any, group: Group | None, async_op: bool, timeout: Time, root: int = -1
    ) -> tuple[Call, Plan]:
        members = self._args.member(group)
        plan = self._args.move(self._args.tensor(t, kind).dtype, kind)
        return Call(Signature(kind, "", (t.dtype,), (t.shape,), root), [t], members, async_op, timeout), plan

    def _group(self, name: str, ranks: tuple[int, ...], handle: Any) -> Group:
        group = Group(name, ranks, handle, owner=self)
        if len(ranks) > 1 and self.rank in ranks:
            group.checker = Checker(
                self._control, name, ranks, self._check, lambda begun: self._take_part(group, begun)
            )
            self._control.recorder.groups[name] = ranks
            if self._control.watcher is not None:
                self._control.watcher.checkers[name] = group.checker
        return group

    def _take_part(self, group: Group, begun: Signature) -> None:
        """Issue, with scratch tensors, an operation that other ranks had begun, so that the group's operations pair
        up again.
        """
        device = self._device.torch_device
        scratch = [
            torch.zeros(shape, dtype=dtype, device=device)
            for dtype, shape in zip(begun.dtypes, begun.shapes, strict=True)
        ]
        unchecked = Group(group.name, group.ranks, group.handle, owner=self)
        many = begun.kind.endswith("_coalesced")
        given: dict[str, Any] = {"op": begun.op} if begun.op else {"src": begun.root} if begun.root >= 0 else {}
        getattr(self, begun.kind)(scratch if many else scratch[0], group=unchecked, **given)


def _rows(wire: torch.Tensor, parts: int) -> torch.Tensor:
    return wire.view(parts, wire.shape[0] // parts, *wire.shape[1:])
