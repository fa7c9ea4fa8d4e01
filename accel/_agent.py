"""`AgentWatch`: ends a launch agent that waits for a host which is out of reach, after a rank of its own has ended.

torch's elastic agent asks the store of the rendezvous between two looks at its ranks. On a host whose network is cut
such a question takes a minute to fail, another one follows, and a rank that ended long ago is not even looked at (torch
2.13). A rank that its agent has not collected after a while is therefore the sign: the agent is held up.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

# Seconds that an ended rank may wait to be collected; an agent that is not held up looks ten times a second.
LIMIT = 8.0
_PERIOD = 0.5


class AgentWatch:
    """A context manager round the agent's run in this process, whose children are the ranks. `where`: HOST:PORT of the
    rendezvous.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="accel-agent-watch", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        pid, since = 0, 0.0
        while not self._over.wait(_PERIOD):
            ended = _uncollected()
            if ended is None or ended[0] != pid:
                pid, since = (0, 0.0) if ended is None else (ended[0], time.monotonic())
            elif time.monotonic() - since >= LIMIT and not self._over.is_set():
                self._end(*ended)

    def _end(self, pid: int, code: int) -> None:
        print(  # noqa: T201 - the process ends here
            f"accel launch: process {pid}, a rank of this host, ended {LIMIT:g} s ago, and its agent still waits for "
            f"an answer from the rendezvous at {self._where}: the network is cut, or that host is gone; the agent ends",
            file=sys.stderr,
            flush=True,
        )
        for children in Path("/proc/self/task").glob("*/children"):
            for child in children.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
        os._exit(code or 1)


def _uncollected() -> tuple[int, int] | None:
    """Process id and exit code (a shell's, for a signal) of a child that has ended and that nobody has waited for."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # no children at all
        return None
    if ended is None:
        return None
    return ended.si_pid, ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status
