"""Who watches the sessions of this process: nobody, or a recorder such as `accel parity record`.

`accel.init` asks once, when it makes a session; a session that nobody watches runs none of a watcher's code. Ranks may
be threads of one process, and each has a watcher of its own.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from accel._start import Start
    from accel.session import Session


class Observer(Protocol):
    """What is asked when a session begins."""

    seed: int | None  # takes the place of the script's own; None leaves that

    def session(self, start: Start) -> Session:
        """The session to give to the script."""


current: ContextVar[Observer | None] = ContextVar("observer", default=None)
