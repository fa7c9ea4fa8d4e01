"""The user's module beneath DDP and `torch.compile`, and the names of its state without the wrappers' prefixes.

A wrapper is recognised by its type, never by a name: a model may have a submodule that is truly called `module`.
"""

from __future__ import annotations

import sys
from typing import cast

from torch import nn


def unwrap(model: nn.Module) -> nn.Module:
    """`model` without the DDP, DataParallel and compile wrappers around it, in whatever order they are nested."""
    while (attribute := _wrapped_as(model)) is not None:
        model = cast("nn.Module", getattr(model, attribute))
    return model


def inner_wrappers(model: nn.Module) -> list[tuple[str, str]]:
    """(prefix, prefix without the wrapper) of each wrapper inside `model`, the innermost first, for `clean_name`."""
    found = []
    for path, module in model.named_modules(remove_duplicate=False):
        attribute = _wrapped_as(module)
        if attribute is not None:
            before = f"{path}." if path else ""
            found.append((f"{before}{attribute}.", before))
    return sorted(found, key=lambda pair: len(pair[0]), reverse=True)


def clean_name(name: str, wrappers: list[tuple[str, str]]) -> str:
    """`name`, a key of `state_dict()`, without the prefixes that `wrappers` (from `inner_wrappers`) put into it."""
    for prefix, clean in wrappers:
        if name.startswith(prefix):
            name = clean + name.removeprefix(prefix)
    return name


def _wrapped_as(module: nn.Module) -> str | None:
    """The attribute under which `module` holds what it wraps; None when it is no wrapper."""
    if isinstance(module, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        return "module"
    # Importing torch._dynamo takes a second; where nothing has imported it, nothing is compiled.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None and isinstance(module, dynamo.OptimizedModule):
        return "_orig_mod"
    return None
