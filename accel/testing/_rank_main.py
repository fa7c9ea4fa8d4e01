"""The side of `accel.testing.ranks` that runs in a rank's process: take a function, run it, send the answer back."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import traceback
import warnings
from multiprocessing.connection import Connection

__all__ = ["serve", "serve_replicas"]

_ORPHAN_AFTER = 15.0  # seconds past the time limit after which a rank ends by itself, should its parent be gone


def serve(descriptors: list[int]) -> None:
    """Be one rank: run what arrives on the pipe, until it closes."""
    _prepare()
    _serve(descriptors[0], alone=True, first=True)


def serve_replicas(backend: str, descriptors: list[int]) -> None:
    """Hold the ranks that `backend` starts in this process, each with a pipe of its own."""
    from accel import registry

    _prepare()
    replicas: int = registry.decided(backend).run_replicas(  # type: ignore[union-attr]
        lambda index: _serve(descriptors[index], alone=False, first=index == 0), len(descriptors)
    )
    os._exit(replicas)  # a thread of the vendor's may still run


def _prepare() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    warnings.simplefilter("error")  # as in the process that runs the tests


def _serve(descriptor: int, alone: bool, first: bool) -> None:
    """`alone`: the process is this rank's own. `first`: of the ranks in it; the limit of a run is watched once."""
    conn = Connection(descriptor)
    while True:
        try:
            path, port, timeout = pickle.loads(conn.recv_bytes())  # noqa: S301 - from the test that started us
            work = conn.recv_bytes()
        except EOFError:
            return
        sys.path[:] = path
        if alone:
            os.environ["MASTER_PORT"] = port
        try:
            fn, args = pickle.loads(work)  # noqa: S301 - imports the module of the test
            conn.send(("ready", None, ""))
            conn.recv()
            if first:
                faulthandler.dump_traceback_later(timeout + _ORPHAN_AFTER, exit=True)
            data = pickle.dumps(("result", fn(*args), ""))
        except SystemExit as leaving:
            if alone:
                raise
            data = pickle.dumps(("exit", leaving.code, traceback.format_exc()))
        except BaseException as error:  # pytest.fail raises none of the Exceptions
            sys.stdout.flush()
            data = pickle.dumps(("error", type(error).__name__, traceback.format_exc()))
        if first:
            faulthandler.cancel_dump_traceback_later()
        conn.send_bytes(data)
