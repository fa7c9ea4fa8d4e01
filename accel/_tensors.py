"""What a tensor must be before a collective may touch it, and how several become one.

The checks raise `TensorError` before anything is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from accel.errors import TensorError


def check_tensor(value: object, device: torch.device, what: str) -> torch.Tensor:
    """`value` if it is a plain strided tensor on `device`."""
    if not isinstance(value, torch.Tensor):
        raise TensorError(f"{what} takes a torch.Tensor; got {type(value).__name__}")
    if value.layout is not torch.strided:
        raise TensorError(f"{what} takes a dense tensor; got layout {value.layout}: use .to_dense() first")
    if value.device != device:
        raise TensorError(
            f"{what} takes a tensor on {device}; got one on {value.device}: move it with .to(session.device)"
        )
    return value


def check_in_place(tensor: torch.Tensor, what: str) -> None:
    """Refuse a tensor that cannot hold a result: one that autograd guards, or whose elements share memory."""
    if tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled():
        raise TensorError(
            f"{what} writes into its tensor, which is a leaf that requires grad; "
            "pass tensor.detach() or use torch.no_grad()"
        )
    if tensor.is_contiguous():
        return
    span = 1 if tensor.numel() else 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride < span:  # only strides that step over everything inside them are sure to share nothing
                raise TensorError(
                    f"{what} writes into its tensor, but elements of shape {list(tensor.shape)} with strides "
                    f"{list(tensor.stride())} share memory (expanded?); pass tensor.contiguous() and use the result"
                )
            span = stride * (size - 1) + span


def check_rows(tensor: torch.Tensor, parts: int, what: str) -> None:
    """Refuse a tensor whose first dimension cannot be dealt out to `parts` ranks."""
    if tensor.dim() == 0 or tensor.shape[0] % parts:
        raise TensorError(
            f"{what} divides the first dimension by the {parts} ranks of the group; got shape {list(tensor.shape)}"
        )


def dense(values: torch.Tensor) -> torch.Tensor:
    """`values` itself where it is contiguous, else a contiguous copy."""
    if values.is_conj() or values.is_neg():
        values = values.resolve_conj().resolve_neg()
    return values if values.is_contiguous() else values.contiguous()


def joined(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, Callable[[], None]]:
    """One flat tensor holding `tensors` of one dtype, and the function that writes it back into them."""
    values = flat(tensors)
    return values, lambda: write_back(values, tensors)


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A new one-dimensional tensor of the elements of `tensors`, which have one dtype and any strides."""
    return torch.cat([t if t.dim() == 1 else t.reshape(-1) for t in tensors])


def write_back(values: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Write `values`, laid out as by `flat`, into `tensors`."""
    parts = torch.split(values, [t.numel() for t in tensors])
    shaped = [part if t.dim() == 1 else part.view(t.shape) for part, t in zip(parts, tensors, strict=True)]
    plain = [t.is_contiguous() for t in tensors]
    if not all(plain):  # an NPU's form for many takes no strides (torch_npu 2.13)
        for part, t in zip(shaped, tensors, strict=True):
            t.copy_(part)
    else:
        torch._foreach_copy_(list(tensors), shaped)
