"""Which line of a script reads a value on the host: a mode that looks at each call of torch for one micro-batch.

It costs more than the step does, so `accel._cuts` starts it once, when it has seen that something is read in every
step.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

_NOT_THE_USERS = ("torch", "torch_xla", "accel", "accel_xla")


class ReadTracer(TorchFunctionMode):
    """Notes the line of each call after which `reads()` is higher than before."""

    def __init__(self, reads: Callable[[], int]) -> None:
        super().__init__()
        self._reads = reads
        self._on = False
        self.lines: dict[str, None] = {}  # in the order found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self._reads()
        result = func(*args, **(kwargs or {}))
        if self._reads() != before:
            self.lines[_line()] = None
        return result

    def start(self) -> None:
        self._on = True
        _push_mode(self)

    def stop(self) -> None:
        """Take the mode away, wherever it is: the script may have entered others since (`with torch.device(...)`)."""
        if not self._on:
            return
        self._on = False
        above = []
        while (mode := _pop_mode()) is not self:
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)


def _line() -> str:
    """The script's own line that is being run: file, number and text."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _NOT_THE_USERS:
        frame = frame.f_back
    name, number = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(name, number).strip()
    return f"{Path(name).name}:{number}" + (f" `{text}`" if text else "")
