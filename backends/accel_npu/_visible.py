"""`ASCEND_RT_VISIBLE_DEVICES`: which NPUs a process sees and by which index; checked before torch_npu reads it.

The runtime wants ascending ids without anything between the commas. Of a list that breaks these rules torch_npu and the
runtime use a part, or report no device at all, without a word (torch_npu 2.9 to 2.14, `torch_npu/npu/__init__.py`,
`_parse_visible_devices` and `_device_count_ascend_hal`; T31). Imports no torch.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence

from accel.errors import ArgumentError

VARIABLE = "ASCEND_RT_VISIBLE_DEVICES"
# Names that resemble the variable and mean something else: this one is the container runtime's.
OTHERS = ("ASCEND_VISIBLE_DEVICES",)
FOREIGN = ("CUDA_VISIBLE_DEVICES", "TPU_VISIBLE_CHIPS")


def visible(present: Sequence[int] | None, environ: Mapping[str, str] = os.environ) -> list[int] | None:
    """Physical ids by logical index, as the variable asks; None where it is unset, so that all are seen.

    `present`: physical ids on this machine, None where they cannot be known. Raises `ArgumentError` for a list that the
    runtime would cut short or refuse without a word; an empty one shows no device and comes back as an empty list.
    """
    text = environ.get(VARIABLE)
    if text is None:
        return None
    if not text:
        return []
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise _bad(text, "decimal ids separated by commas, with nothing else: no space, sign, letter or empty place")
    ids = [int(part) for part in parts]
    if len(set(ids)) != len(ids):
        raise _bad(text, "each id once")
    if ids != sorted(ids):
        raise _bad(text, f"ascending ids, {','.join(map(str, sorted(ids)))!r} here: local rank 0 gets the lowest")
    if present is not None and not set(ids) <= set(present):
        here = ", ".join(map(str, present)) or "none"
        raise _bad(text, f"ids of NPUs that this machine has ({here})")
    return ids


def misspelt(environ: Mapping[str, str] = os.environ) -> list[str]:
    """One line for each variable that was meant to choose NPUs and does not."""
    lines = [
        f"{name}={environ[name]!r} is not read by anything; did you mean {VARIABLE}?"
        for name in sorted(environ)
        if name not in (VARIABLE, *OTHERS) and difflib.SequenceMatcher(None, name, VARIABLE).ratio() > 0.9
    ]
    if VARIABLE not in environ:
        lines += [
            f"{name}={environ[name]!r} does not choose NPUs; {VARIABLE} does" for name in FOREIGN if environ.get(name)
        ]
    return lines


def _bad(text: str, expected: str) -> ArgumentError:
    return ArgumentError(f"{VARIABLE}={text!r}: expected {expected}; correct it, or unset it to see every NPU")
