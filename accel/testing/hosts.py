"""`Hosts`: several hosts on one machine, for tests: network namespaces on a switch, with links that can be cut and
slowed.

Each host has its own network stack, address and host name; processes started in it share files and processors with
the test. Nothing is left behind: the namespaces are anonymous, and end with the processes that hold them. The
machine's own network is not touched. Links are made through netlink by pyroute2, so that no `ip` or `tc` is needed.
Addresses are of 198.18.0.0/15, which RFC 2544 sets aside for benchmarks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

SCRIPT = str(Path(__file__).with_name("_host.py"))


@cache
def why_not() -> str | None:
    """Why this user cannot make network namespaces here; None where it can."""
    if not sys.platform.startswith("linux"):
        return f"network namespaces are Linux's, and this is {sys.platform}"
    tried = subprocess.run([sys.executable, SCRIPT, "try"], capture_output=True, text=True, timeout=60, check=False)
    return None if tried.returncode == 0 else f"network namespaces cannot be made here: {tried.stderr.splitlines()[-1]}"


class Hosts:
    """`count` hosts on a switch. A context manager: at its end whatever still runs in them is killed."""

    def __init__(self, count: int) -> None:
        self.addresses = [f"198.18.0.{index + 1}" for index in range(count)]
        self._count = count
        self._started: list[subprocess.Popen[Any]] = []
        self._holders: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Hosts:
        try:
            for address in self.addresses:  # is the host's name too: a launch agent must be able to resolve its own
                self._holders.append(_holder(address))
            self._holders.append(_holder("switch"))
            self._ask(self._count, "bridge", "bridge")
            for index, address in enumerate(self.addresses):
                self._ask(self._count, "cable", f"port{index}", "bridge", self._holders[index].pid)
                self._ask(index, "address", "eth0", address)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(
        self,
        host: int,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
    ) -> subprocess.Popen[Any]:
        """Start `command` in `host`, in a session of its own; both its outputs go to `output`."""
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", SCRIPT, "enter", str(self._holders[host].pid), *command],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output is not None else None,
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def cut(self, host: int) -> None:
        """Pull the cable of `host`: nothing gets in or out, and nobody is told."""
        self._ask(self._count, "down", f"port{host}")

    def mend(self, host: int) -> None:
        self._ask(self._count, "up", f"port{host}")

    def shape(self, host: int, rate: int) -> None:
        """Limit the link of `host` to `rate` bytes/s in each direction."""
        self._ask(host, "shape", "eth0", rate)
        self._ask(self._count, "shape", f"port{host}", rate)

    def close(self) -> None:
        """Kill what runs in the hosts, and the hosts."""
        for process in self._started:
            for pid in _in_session(process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:  # ended by itself meanwhile
                    continue
            process.wait()
        for holder in self._holders:
            holder.kill()
            holder.wait()
            for pipe in (holder.stdin, holder.stdout):
                if pipe is not None:
                    pipe.close()
        self._started, self._holders = [], []

    def _ask(self, holder: int, *words: Any) -> None:
        process = self._holders[holder]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(words) + "\n")
        process.stdin.flush()
        answer = process.stdout.readline().strip()
        if answer != "done":
            raise OSError(f"{words} in host {holder}: {answer or 'it has ended'}")


def _holder(name: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, SCRIPT, "hold", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    if process.stdout.readline().strip() != "ready":
        process.kill()
        process.wait()
        raise OSError(f"{name}: no network namespace; see its message above, and why_not()")
    return process


def _in_session(leader: int) -> list[int]:
    """Processes of the session that `leader` began, and their descendants, as Linux lists them now."""
    parents: dict[int, int] = {}
    found: set[int] = {leader}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended while we looked
            continue
        pid = int(stat.parent.name)
        parents[pid] = int(fields[1])
        if int(fields[3]) == leader:
            found.add(pid)
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        found, grown = found | more, bool(more)
    return sorted(found)
