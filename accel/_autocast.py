"""Operators that a policy computes in fp32 although the vendor's autocast list leaves them in the low dtype.

torch's lists differ between device types: CUDA's and Ascend's name softmax and the normalisations over a sample, the
CPU's and XLA's do not (torch 2.9 to 2.13). What is missing is added to torch's dispatcher while a session that casts is
open; an operator that the vendor's list has by then is left to it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

_lock = threading.Lock()
_users: dict[str, int] = {}  # open sessions by dispatch key
_added: dict[str, torch.library.Library] = {}


def widen(key: str, operators: tuple[str, ...]) -> None:
    """Compute `operators` (such as "softmax.int") in fp32 under the autocast of dispatch key `key`, until `release`."""
    with _lock:
        if key in _added:
            _users[key] += 1
            return
        library = torch.library.Library("aten", "IMPL")
        for operator in operators:
            if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operator}", key):
                library.impl(operator, _in_fp32(operator, key), key)
        _added[key], _users[key] = library, 1


def release(key: str) -> None:
    """Undo one `widen`; with the last one the dispatcher is as it was."""
    with _lock:
        _users[key] -= 1
        if not _users[key]:
            _added.pop(key)._destroy()


def _in_fp32(operator: str, key: str) -> Callable[..., Any]:
    name, _, overload = operator.partition(".")
    call = getattr(getattr(torch.ops.aten, name), overload or "default")
    below = torch._C.DispatchKeySet(torch._C._dispatch_key_parse(key))

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(below):
            return call(*(_float(value) for value in args), **kwargs)

    return kernel


def _float(value: Any) -> Any:
    half = isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)
    return value.float() if half else value
