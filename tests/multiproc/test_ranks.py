"""The process harness itself: every way in which a rank can end is reported, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accel.testing.ranks import RankFailure, RankPool, outcomes, run_ranks


def _describe(extra: str) -> tuple[int, str, str, str]:
    return int(os.environ["RANK"]), os.environ["WORLD_SIZE"], os.environ["OMP_NUM_THREADS"], extra


def _misbehave(how: str) -> int:
    if os.environ["RANK"] == "0":
        return os.getpid()
    if how == "raise":
        raise ValueError("rank 1 does not like this")
    if how == "exit":
        sys.exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    _hang_here()
    return 0


def _hang_here() -> None:
    time.sleep(600)


def _hang_with_grandchild(path: str) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    (Path(path) / os.environ["RANK"]).write_text(f"{os.getpid()} {child.pid}")
    _hang_here()


def _port_and_pid() -> tuple[str, int]:
    return os.environ["MASTER_PORT"], os.getpid()


def test_results_come_back_by_rank() -> None:
    assert run_ranks(_describe, 3, "x") == [(rank, "3", "1", "x") for rank in range(3)]


def test_environment_reaches_the_ranks() -> None:
    assert run_ranks(_describe, 1, "x", env={"OMP_NUM_THREADS": "2"}) == [(0, "1", "2", "x")]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("raise", "ValueError: rank 1 does not like this"),
        ("exit", "exit code 7"),
        ("kill", "killed by SIGKILL"),
        ("hang", "in _hang_here"),
    ],
)
def test_failed_rank_is_named_with_its_cause(how: str, said: str) -> None:
    with pytest.raises(RankFailure) as failure:
        run_ranks(_misbehave, 2, how, timeout=3.0)
    assert list(failure.value.ranks) == [1]
    assert said in failure.value.ranks[1]
    assert "rank 1" in str(failure.value)


def test_outcomes_tell_how_each_rank_ended() -> None:
    assert outcomes(_misbehave, 2, "exit")[1][:2] == ("exit", 7)
    assert outcomes(_misbehave, 2, "raise")[1][:2] == ("error", "ValueError")
    assert outcomes(_misbehave, 2, "kill")[1][:2] == ("exit", -signal.SIGKILL)
    assert outcomes(_misbehave, 2, "hang", timeout=2.0)[1].kind == "hung"


def test_nothing_is_left_running_after_a_hang(tmp_path: Path) -> None:
    with pytest.raises(RankFailure):
        run_ranks(_hang_with_grandchild, 2, str(tmp_path), timeout=2.0)
    pids = [int(pid) for rank in (0, 1) for pid in (tmp_path / str(rank)).read_text().split()]
    end = time.monotonic() + 10
    while alive := [pid for pid in pids if _alive(pid)]:
        assert time.monotonic() < end, f"still running: {alive}"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    """Whether `pid` still runs; a killed orphan waits as a zombie for its new parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_pool_keeps_its_processes_and_changes_the_port() -> None:
    with RankPool(2) as pool:
        first, second = pool.run(_port_and_pid), pool.run(_port_and_pid)
    assert [pid for _, pid in first] == [pid for _, pid in second]
    assert first[0][0] == first[1][0] != second[0][0]


def test_pool_works_again_after_a_failure() -> None:
    with RankPool(2) as pool:
        with pytest.raises(RankFailure):
            pool.run(_misbehave, "exit")
        assert [rank for rank, *_ in pool.run(_describe, "y")] == [0, 1]
