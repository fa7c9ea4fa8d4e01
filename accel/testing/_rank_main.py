"""The side of `accel.testing.ranks` that runs in each rank's process: take a function, run it, send the answer back."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import traceback
import warnings
from multiprocessing.connection import Connection

_ORPHAN_AFTER = 15.0  # seconds past the time limit after which a rank ends by itself, should its parent be gone


def serve(fd: int) -> None:
    """Run what arrives on the pipe `fd`, until it closes."""
    conn = Connection(fd)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    warnings.simplefilter("error")  # as in the process that runs the tests
    while True:
        try:
            path, port, timeout = pickle.loads(conn.recv_bytes())  # noqa: S301 - from the test that started us
            work = conn.recv_bytes()
        except EOFError:
            return
        sys.path[:] = path
        os.environ["MASTER_PORT"] = port
        try:
            fn, args = pickle.loads(work)  # noqa: S301 - imports the module of the test
            conn.send(("ready", None, ""))
            conn.recv()
            faulthandler.dump_traceback_later(timeout + _ORPHAN_AFTER, exit=True)
            data = pickle.dumps(("result", fn(*args), ""))
        except SystemExit:
            raise
        except BaseException as error:  # pytest.fail raises none of the Exceptions
            sys.stdout.flush()
            data = pickle.dumps(("error", type(error).__name__, traceback.format_exc()))
        faulthandler.cancel_dump_traceback_later()
        conn.send_bytes(data)
