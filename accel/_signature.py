"""`Signature`: what all ranks must agree on in one collective, in a form that is compared, sent and shown."""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

import torch

_SHOWN = 4  # shapes written out in an error


class Signature(NamedTuple):
    """What must be alike on all ranks. `root`: source of a broadcast, peer of a send or receive, -1 elsewhere."""

    kind: str
    op: str = ""
    dtypes: tuple[torch.dtype, ...] = ()
    shapes: tuple[torch.Size, ...] = ()
    root: int = -1

    def __str__(self) -> str:
        if not self.dtypes:
            return self.kind
        dtypes = ", ".join(self.dtype_names())
        shapes = ", ".join(str(list(shape)) for shape in self.shapes)
        if len(self.shapes) > _SHOWN:
            elements = sum(shape.numel() for shape in self.shapes)
            shapes = f"{len(self.shapes)} tensors, {elements} elements, digest {hash(self.shapes) & 0xFFFF:04x}"
        op = f"op={self.op}, " if self.op else ""
        root = f", {'dst' if self.kind == 'send' else 'src'}={self.root}" if self.root >= 0 else ""
        return f"{self.kind}({op}dtype={dtypes}, shape={shapes}{root})"

    def dtype_names(self) -> list[str]:
        """The different dtypes, without "torch."."""
        return [str(dtype).removeprefix("torch.") for dtype in dict.fromkeys(self.dtypes)]

    def identity(self) -> str:
        """The signature as one line of text, equal on two ranks exactly where the signatures are."""
        return json.dumps(
            {
                "kind": self.kind,
                "op": self.op,
                "dtypes": [str(dtype).removeprefix("torch.") for dtype in self.dtypes],
                "shapes": [list(shape) for shape in self.shapes],
                "root": self.root,
            }
        )

    def digest(self) -> int:
        """63 bits that are alike in every process, which `hash` of text is not."""
        return int.from_bytes(hashlib.blake2b(self.identity().encode(), digest_size=8).digest(), "big") >> 1


def parse(identity: str) -> Signature:
    """The signature that `Signature.identity` wrote."""
    view = json.loads(identity)
    dtypes = tuple(getattr(torch, name) for name in view["dtypes"])
    shapes = tuple(torch.Size(shape) for shape in view["shapes"])
    return Signature(view["kind"], view["op"], dtypes, shapes, view["root"])
