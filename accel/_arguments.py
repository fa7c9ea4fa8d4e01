"""Checked arguments of collectives: tensors, groups, ranks, and the plan for a dtype; all refused before anything is
sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from accel import _lowering
from accel._call import Group
from accel._lowering import Plan
from accel._tensors import check_in_place, check_tensor
from accel.device import Device
from accel.errors import ArgumentError
from accel.transport import REDUCE_OPS, Transport

_STRIDED = torch.strided


class Arguments:
    """Checks for one rank of one job. `world`: the group of all ranks."""

    def __init__(self, transport: Transport, device: Device, world: Group, rank: int) -> None:
        self._transport = transport
        self._device = device
        self._world = world
        self._rank = rank
        self._plans: dict[tuple[str, torch.dtype], Plan] = {}  # of what has been asked for and is available

    def tensor(self, value: Any, what: str) -> torch.Tensor:
        """`value` if it is a dense tensor on this rank's device. Raises `TensorError`."""
        return check_tensor(value, self._device.torch_device, what)

    def targets(self, values: Sequence[Any], what: str) -> tuple[torch.dtype, ...]:
        """The dtypes of `values` if each is a dense tensor on this rank's device that can hold a result."""
        here = self._device.torch_device
        for value in values:  # most pass every check at a glance, and there may be hundreds
            if not (
                isinstance(value, torch.Tensor)
                and value.layout is _STRIDED
                and value.device == here
                and value.is_contiguous()
                and not value.requires_grad
            ):
                check_in_place(check_tensor(value, here, what), what)
        return (values[0].dtype,) if len(values) == 1 else tuple([value.dtype for value in values])

    def reduction(self, op: str, dtype: torch.dtype, what: str) -> Plan:
        """How `dtype` is reduced. Raises `ArgumentError` for an unknown op, else what the plan says."""
        if not isinstance(op, str) or op not in REDUCE_OPS:
            raise ArgumentError(f"op is {op!r}; expected one of {', '.join(REDUCE_OPS)}")
        plan = self._plans.get((op, dtype))
        if plan is None:
            plan = _lowering.reduction(op, dtype, self._transport.native_reductions)
            self._plans[op, dtype] = _available(plan, f"{what}(op={op!r}, dtype={dtype})")
        return plan

    def move(self, dtype: torch.dtype, what: str) -> Plan:
        """How `dtype` is moved."""
        plan = self._plans.get(("", dtype))
        if plan is None:
            plan = _lowering.move(dtype, self._transport.native_dtypes)
            self._plans["", dtype] = _available(plan, f"{what}(dtype={dtype})")
        return plan

    def member(self, group: Group | None) -> Group:
        """`group`, or all ranks; this rank must belong to it."""
        if group is None:
            return self._world
        if not isinstance(group, Group):
            raise ArgumentError(f"group is {group!r}; expected what new_group returned, or None for all ranks")
        if group.owner is not self._world.owner:
            raise ArgumentError(
                f"group {group.name!r} was made by another session: its ranks have parted; call new_group again"
            )
        if not group.contains(self._rank):
            raise ArgumentError(
                f"group {group.name!r} lacks this rank {self._rank}: only its members {list(group.ranks)} may use it"
            )
        return group

    def peer(self, rank: Any, name: str, group: Group | None) -> int:
        """`rank` if it is a global rank of the group."""
        members = self.member(group)
        if type(rank) is not int or not members.contains(rank):
            raise ArgumentError(
                f"{name} is {rank!r}; expected a global rank of group {members.name!r}: {list(members.ranks)}"
            )
        return rank

    def other(self, rank: Any, name: str, group: Group | None) -> int:
        """`rank` if it is another rank of the group."""
        if self.peer(rank, name, group) == self._rank:
            raise ArgumentError(f"{name} is {rank}, this rank itself; send and recv need another rank")
        return int(rank)


def _available(plan: Plan, what: str) -> Plan:
    if not plan.cell.available:
        raise plan.error(f"{what} is unsupported: {plan.cell.why}")
    return plan
