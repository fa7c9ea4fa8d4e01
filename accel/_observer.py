"""Who watches the sessions of this process: nobody, or a recorder such as `accel parity record`.

`accel.init` asks once, when it makes a session; a session that nobody watches runs none of a watcher's code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from accel._start import Start
    from accel.session import Session


class Observer(Protocol):
    """What is asked when a session begins."""

    seed: int | None  # takes the place of the script's own; None leaves that

    def session(self, start: Start) -> Session:
        """The session to give to the script."""


current: Observer | None = None
