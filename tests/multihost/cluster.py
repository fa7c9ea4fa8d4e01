"""A job on several hosts of `accel.testing.hosts`, each with its own launch agent, and what its ranks tell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from accel.testing.hosts import Hosts

JOB = str(Path(__file__).with_name("job.py"))
START = 100.0  # seconds that agents and ranks get to start, on a busy machine


class Cluster:
    """`accel launch` on `count` hosts, one rank each. `timeout`: of the session, in seconds."""

    def __init__(self, hosts: Hosts, folder: Path, count: int, *, steps: int, timeout: float) -> None:
        self.hosts, self.folder, self.count, self.timeout = hosts, folder, count, timeout
        self._steps = steps
        self._outputs: list[IO[bytes]] = []
        self.agents: dict[int, subprocess.Popen[Any]] = {}

    def launch(self, *which: int) -> None:
        """Start the agents of these hosts, all by default."""
        words = f"launch --nnodes {self.count} --nproc 1 --rendezvous {self.hosts.addresses[0]}:29400 {JOB}".split()
        job = [sys.executable, "-m", "accel", *words, str(self.folder), str(self._steps), str(self.timeout)]
        env = {"ACCEL_BACKEND": "cpu", "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"}
        for host in which or range(self.count):
            self._outputs.append((self.folder / f"output-{host}").open("wb"))
            self.agents[host] = self.hosts.start(host, job, env=env, output=self._outputs[-1])

    def news(self, rank: int) -> list[str]:
        file = self.folder / f"rank-{rank}"
        return file.read_text().splitlines() if file.exists() else []

    def reached(self, step: int) -> None:
        """Return when every rank has done `step`."""

        def there() -> bool:
            ended = [host for host, agent in self.agents.items() if agent.poll() is not None]
            assert not ended, f"agents of hosts {ended} ended before step {step}: {self.told()}"
            return all(f"step {step}" in self.news(rank) for rank in range(self.count))

        self.until(there, START)

    def until(self, ready: Any, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < end, f"not within {seconds:g} s: {self.told()}"
            time.sleep(0.05)

    def pid(self, rank: int) -> int:
        return int((self.folder / f"pid-{rank}").read_text())

    def kill(self, pid: int, how: signal.Signals) -> None:
        os.kill(pid, how)

    def error(self, rank: int, since: float) -> tuple[float, str]:
        """Seconds from `since` (Unix time) to the rank's error, and the error."""
        lines = [line for line in self.news(rank) if line.startswith("error ")]
        assert len(lines) == 1, self.told()
        _, when, text = lines[0].split(" ", 2)
        return float(when) - since, text

    def codes(self, seconds: float, *which: int) -> list[int]:
        """The exit codes of these agents, which must end within `seconds`."""
        self.until(lambda: all(self.agents[host].poll() is not None for host in which), seconds)
        return [self.agents[host].wait() for host in which]

    def told(self) -> str:
        """Everything that ranks and agents said, for a failure."""
        files = sorted([*self.folder.glob("rank-*"), *self.folder.glob("output-*")])
        return "\n".join(f"--- {file.name}\n{file.read_text(errors='replace')[-3000:]}" for file in files)

    def close(self) -> None:
        for output in self._outputs:
            output.close()

    def total(self) -> str:
        """The line with which every rank of a job that went on ends: the sum of ranks 1 to n, once a step."""
        return f"sum {self._steps * sum(range(1, self.count + 1)):g}"


def named(error: str, rank: int) -> bool:
    """Whether `error` says that this rank is the one missing."""
    return re.search(rf"ranks? [\d, ]*\b{rank}\b", error) is not None
