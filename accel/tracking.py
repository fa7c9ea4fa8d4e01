"""`Tracker`: the live bytes of tensors, counted from the operations that make them, where no allocator counts them.

It sees each operation that reaches torch's dispatcher, on real tensors of any eager device and on fake ones, and notes
when a storage appears and when its last tensor goes. What a kernel takes and gives back within one operation is not
seen. Owns counting only; `accel.footprint` sorts what was counted into parameters, gradients and so on.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Tracker(TorchDispatchMode):
    """Counts the bytes of storages on `device_type` while it is entered.

    A storage that an operation only reads was there before: it counts as live from the beginning. One that no operation
    touches is not known.
    """

    def __init__(self, device_type: str, fake: bool = False) -> None:
        """fake: count fake tensors, and not real ones."""
        super().__init__()  # type: ignore[no-untyped-call]
        self._type = device_type
        self._fake = fake
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}  # by the storage's id: what says that it is gone
        self.extra: dict[int, int] = {}  # bytes that a storage has on the device planned for and not on this one
        self.sizes: list[int] = []  # bytes, by the storage's number in order of appearance
        self.early: set[int] = set()  # numbers of those that were there before
        self.base = 0  # bytes of those
        self.change = 0  # bytes since then
        self.highest = 0  # of `change`
        self._restarted = 0  # the same, since `restart_peak`

    @property
    def live(self) -> int:
        """Bytes of the storages known now."""
        return self.base + self.change

    @property
    def peak(self) -> int:
        """The most bytes that were live at once since the beginning."""
        return self.base + self.highest

    @property
    def since_reset(self) -> int:
        """The most bytes that were live at once since `restart_peak`."""
        return self.base + self._restarted

    def restart_peak(self) -> None:
        """Let `since_reset` start anew at the live bytes."""
        self._restarted = self.change

    def know(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """Count `tensors` as there before; the numbers of their storages."""
        return [number for tensor in tensors if (number := self._see(tensor, made=False)) is not None]

    def number(self, tensor: torch.Tensor) -> int | None:
        """The number of the storage of `tensor`; None where it is not known."""
        storage = tensor.untyped_storage()
        known = self._known.get(id(storage))
        return known[1] if known is not None and known[0]() is storage else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf, made=False)
        out = func(*args, **kwargs)
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf, made=True)
        return out

    def _see(self, tensor: torch.Tensor, made: bool) -> int | None:
        if tensor.device.type != self._type or isinstance(tensor, FakeTensor) is not self._fake:
            return None
        if tensor.layout is not torch.strided:  # its parts have the storages
            return None
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        known = self._known.get(key)
        if known is not None and known[0]() is storage:
            number = known[1]
            size += self.extra.get(number, 0)
            if size != self.sizes[number]:  # resized in place
                self._moved(number, size - self.sizes[number])
                self.sizes[number] = size
            return number
        number = len(self.sizes)
        self.sizes.append(size)

        def gone(_: object) -> None:
            self._moved(number, -self.sizes[number])
            if key in self._known and self._known[key][1] == number:  # the id may be another storage's by now
                del self._known[key]

        self._known[key] = weakref.ref(storage, gone), number
        if made:
            self._moved(number, size)
        else:
            self.base += size
            self.early.add(number)
        return number

    def _moved(self, number: int, size: int) -> None:
        """Storage `number` took `size` bytes more."""
        self.change += size
        self.highest = max(self.highest, self.change)
        self._restarted = max(self._restarted, self.change)
