"""Copies of batches to the device, begun before their use: plainly, or on a stream of their own.

A device says which of the two it has (`Device.copies`); the loop over data begins the copies of the next batches and
finishes each when its turn comes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class Copies:
    """Each copy is issued where the computation is; a lazy device, or one without streams, has no better place."""

    def __init__(self, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self._move = move

    def begin(self, batch: Any) -> Any:
        """Start to copy every tensor of `batch`; give what comes back to `finish`."""
        return moved(batch, self._move)

    def finish(self, begun: Any) -> Any:
        """The batch on the device, ready for whatever is computed next."""
        return begun


class StreamCopies(Copies):
    """Copies on a stream of their own, which run while earlier batches are computed.

    They do so where the host's memory is pinned, as with `DataLoader(pin_memory=True)`; from other memory the driver
    first takes a copy, and the host waits for that. `module` is the torch device module.
    """

    def __init__(self, move: Callable[[torch.Tensor], torch.Tensor], module: Any) -> None:
        super().__init__(move)
        self._module = module
        self._stream = module.Stream()

    def begin(self, batch: Any) -> Any:
        with self._module.stream(self._stream):
            copied = moved(batch, self._move)
            event = self._module.Event()
            event.record(self._stream)
        return copied, event

    def finish(self, begun: Any) -> Any:
        batch, event = begun
        current = self._module.current_stream()
        current.wait_event(event)

        def used(tensor: torch.Tensor) -> torch.Tensor:
            tensor.record_stream(current)  # its memory belongs to the copying stream, which must not take it back early
            return tensor

        return moved(batch, used)


def moved(batch: Any, move: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """`batch` with every tensor in it moved; tuples, named tuples, lists and dicts may nest, other values stay as
    they are.
    """
    if isinstance(batch, torch.Tensor):
        return move(batch)
    kind = type(batch)
    if kind is tuple or kind is list:
        return kind([moved(item, move) for item in batch])
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return kind(*[moved(item, move) for item in batch])
    if isinstance(batch, dict):
        return {key: moved(value, move) for key, value in batch.items()}
    return batch
