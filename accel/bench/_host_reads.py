"""Counting where the host waits for a value of the device: a mode that looks at every operation of a loop.

It costs more than a small step does, so nothing is timed under it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# torch marks operations whose result, or its shape, the host must read from the data: item(), equal(), nonzero(), ...
_TAGS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})


class HostReads(TorchDispatchMode):
    """`count` of the operations that read from the device: values, shapes that depend on them, and copies to the
    host.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count += not _TAGS.isdisjoint(func.tags) or _copies_to_host(args, result)
        return result


def _copies_to_host(args: Any, result: Any) -> bool:
    if not isinstance(result, torch.Tensor) or result.device.type != "cpu":
        return False
    return any(isinstance(arg, torch.Tensor) and arg.device.type not in ("cpu", "meta") for arg in args)
