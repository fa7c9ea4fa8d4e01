"""`run_ranks` and `RankPool`: run one function as the ranks of a small job, in fresh processes, for tests.

A rank is a process, unless the backend under test starts its ranks itself (`run_replicas` of its spec): then one
process holds them all. Owns process start, the hard time limit, the collection of results and of tracebacks, and the
clean-up (grandchildren included). The functions themselves call `accel.init` or whatever they test. Results travel by
pickle between processes of one test run; nothing of the library itself uses this.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import IO, Any, NamedTuple

from accel import registry

_TAIL = 6000  # characters of a rank's output that are shown in a failure
_START = 120.0  # seconds that a process gets to start and to import the function's module, on a busy machine
_AFTER_FAILURE = 10.0  # seconds that the other ranks get to end once one has failed


class Outcome(NamedTuple):
    """How one rank ended. `kind`: "result" (value), "error" (value is the exception's type name), "exit" (value is
    the exit code, negative for a signal), "hung" (killed at the time limit) or "ready" (never ran, as another rank
    failed to start). `text`: traceback, output or stacks.
    """

    kind: str
    value: Any
    text: str = ""


class RankFailure(AssertionError):
    """At least one rank raised, ended or hung; `ranks` maps each of them to what it said."""

    def __init__(self, ranks: dict[int, str]) -> None:
        self.ranks = ranks
        super().__init__("\n".join(f"--- rank {rank}: {text}" for rank, text in sorted(ranks.items())))


def run_ranks(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
) -> list[Any]:
    """Run `fn(*args)` in `world_size` fresh processes; return the results by rank, or raise `RankFailure`.

    `fn` must be a top-level function of an importable module. `timeout` in seconds is hard: whatever is left is killed.
    """
    with RankPool(world_size, env=env) as pool:
        return pool.run(fn, *args, timeout=timeout)


def outcomes(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout: float = 60.0,
    env: Mapping[str, str] | None = None,
) -> list[Outcome]:
    """Like `run_ranks`, but say how each rank ended instead of raising; for tests of failure."""
    with RankPool(world_size, env=env) as pool:
        return pool.outcomes(fn, *args, timeout=timeout)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def one_rank_store() -> Any:
    """A store for a fabric that is joined by this process alone."""
    from torch._C._distributed_c10d import TCPStore

    return TCPStore("127.0.0.1", free_port(), 1, is_master=True)


class RankPool:
    """Ranks that stay alive and run functions one after the other; all are replaced after a failure."""

    def __init__(self, world_size: int, env: Mapping[str, str] | None = None, backend: str | None = None) -> None:
        """`backend`: the ranks start as this backend starts them; None: as processes with a launcher's variables."""
        self.world_size = world_size
        self._env = dict(env or {})
        self._records: str | None = None  # folder of the ranks' flight records
        self._replicas_of = backend if hasattr(registry.decided(backend), "run_replicas") and backend else None
        self._ranks: list[_Rank] = []

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def run(self, fn: Callable[..., Any], *args: Any, timeout: float = 60.0) -> list[Any]:
        """Run `fn(*args)` on every rank; return the results by rank, or raise `RankFailure`."""
        ended = self._run(fn, args, timeout, after_failure=_AFTER_FAILURE)
        failed = {rank: end.text for rank, end in enumerate(ended) if end.kind not in ("result", "ready")}
        if failed:
            raise RankFailure(failed)
        return [end.value for end in ended]

    def outcomes(
        self, fn: Callable[..., Any], *args: Any, timeout: float = 60.0, after_failure: float | None = None
    ) -> list[Outcome]:
        """Like `run`, but say how each rank ended; a rank is waited for until `timeout` whatever the others do, or for
        `after_failure` seconds once one of them has failed.
        """
        return self._run(fn, args, timeout, timeout if after_failure is None else after_failure)

    def close(self) -> None:
        """End all ranks and what they started."""
        for rank in self._ranks:
            rank.process.kill()
            rank.conn.close()
            rank.process.output.close()
        self._ranks = []
        if self._records is not None:
            shutil.rmtree(self._records, ignore_errors=True)
            self._records = None

    def _start(self) -> list[_Rank]:
        world = range(self.world_size)
        self._records = tempfile.mkdtemp(prefix="accel-ranks-")
        env = {"ACCEL_FLIGHT_DIR": self._records, **self._env}
        if self._replicas_of is not None:
            process = _Process(self.world_size, f"serve_replicas({self._replicas_of!r}, FDS)", env)
            return [_Rank(rank, process.conns[rank], process) for rank in world]
        ranks = []
        for rank in world:
            place = {
                "RANK": rank,
                "WORLD_SIZE": self.world_size,
                "LOCAL_RANK": rank,
                "LOCAL_WORLD_SIZE": self.world_size,
            }
            variables = {"MASTER_ADDR": "127.0.0.1", **{name: str(value) for name, value in place.items()}}
            process = _Process(1, "serve(FDS)", {**variables, **env})
            ranks.append(_Rank(rank, process.conns[0], process))
        return ranks

    def _run(self, fn: Callable[..., Any], args: Sequence[Any], timeout: float, after_failure: float) -> list[Outcome]:
        if not self._ranks:
            self._ranks = self._start()
        port = str(free_port())
        for rank in self._ranks:
            rank.send((list(sys.path), port, timeout), (fn, args))
        ended = self._collect(_START, after_failure=0.0)
        if all(end.kind == "ready" for end in ended.values()) and len(ended) == self.world_size:
            for rank in self._ranks:
                rank.conn.send("go")
            ended = self._collect(timeout, after_failure)
        for rank in self._ranks:
            if rank.index not in ended:
                ended[rank.index] = rank.hung(timeout)
        if any(end.kind != "result" for end in ended.values()):
            self.close()
        return [ended[index] for index in range(self.world_size)]

    def _collect(self, timeout: float, after_failure: float) -> dict[int, Outcome]:
        """One answer of each rank; those of ranks that gave none in time are left out."""
        deadline = time.monotonic() + timeout
        ended: dict[int, Outcome] = {}
        while len(ended) < self.world_size and time.monotonic() < deadline:
            waiting = {rank.conn: rank for rank in self._ranks if rank.index not in ended}
            for ready in connection.wait(list(waiting), timeout=deadline - time.monotonic()):
                rank = waiting[ready]  # type: ignore[index]
                ended[rank.index] = rank.outcome()
                if ended[rank.index].kind in ("error", "exit"):
                    deadline = min(deadline, time.monotonic() + after_failure)
        return ended


class _Process:
    """A process that holds `ranks` ranks, in a session of its own, with a pipe to each and a file for its output."""

    def __init__(self, ranks: int, serve: str, env: Mapping[str, str]) -> None:
        pipes = [connection.Pipe() for _ in range(ranks)]
        self.conns = [ours for ours, _ in pipes]
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the pool
        descriptors = [theirs.fileno() for _, theirs in pipes]
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from accel.testing._rank_main import *; {serve.replace('FDS', str(descriptors))}"],
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
                "OMP_NUM_THREADS": "1",
                **env,
            },
            stdout=self.output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,
        )
        for _, theirs in pipes:
            theirs.close()

    def wait(self) -> int:
        return self._process.wait()

    def stacks(self) -> None:
        """Ask for the stacks of all threads."""
        before = self.output.seek(0, os.SEEK_END)
        self._process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + 2.0
        while self._process.poll() is None and self.output.seek(0, os.SEEK_END) == before and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(0.1)

    def kill(self) -> None:
        started = _descendants(self._process.pid)
        for pid in (self._process.pid, *started):
            for kill in (os.killpg, os.kill):
                try:
                    kill(pid, signal.SIGKILL)
                except (ProcessLookupError, PermissionError):
                    continue  # already gone, or not the leader of a group
        self._process.wait()

    def tail(self) -> str:
        self.output.seek(0)
        return self.output.read().decode(errors="replace")[-_TAIL:]


class _Rank:
    """One rank: its pipe, and the process that it is or that holds it."""

    def __init__(self, index: int, conn: connection.Connection, process: _Process) -> None:
        self.index = index
        self.conn = conn
        self.process = process

    def send(self, setting: Any, work: Any) -> None:
        try:
            self.conn.send_bytes(ForkingPickler.dumps(setting))
            self.conn.send_bytes(ForkingPickler.dumps(work))
        except BrokenPipeError:
            pass  # the rank ended; `outcome` reports how

    def outcome(self) -> Outcome:
        """The answer that lies in the pipe, or the exit code where the process ended without one."""
        try:
            kind, value, text = self.conn.recv()
        except (EOFError, ConnectionResetError):
            code = self.process.wait()
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            return Outcome("exit", code, f"ended with {how}\n{self.process.tail()}")
        return Outcome(kind, value, text if kind == "result" else f"{text}\n{self.process.tail()}")

    def hung(self, timeout: float) -> Outcome:
        """Leave the stacks of its process in the outcome, and kill it."""
        self.process.stacks()
        self.process.kill()
        return Outcome("hung", None, f"hung; killed (time limit {timeout:g} s)\n{self.process.tail()}")


def _descendants(pid: int) -> list[int]:
    """Processes started by `pid`, and by those, as Linux lists them."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            direct = [int(child) for child in children.read_text().split()]
        except OSError:
            continue  # the thread ended while we looked
        for child in direct:
            found += [child, *_descendants(child)]
    return found
