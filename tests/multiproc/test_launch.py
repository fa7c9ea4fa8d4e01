"""`accel launch`: environment of the ranks, exit codes, clean-up, several jobs at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accel.testing.ranks import free_port

HELLO = """
import os, sys
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "OMP_NUM_THREADS"]
print("|".join([*(os.environ[name] for name in names), *sys.argv[1:]]) + "\\n", end="")
"""
MEET = """
from tests.multiproc.jobs import collective
import torch
with collective(timeout=60.0) as c:
    t = torch.ones(1)
    c.all_reduce(t)
    c.barrier()
    print(f"sum {t.item()}\\n", end="", flush=True)  # one write: two ranks share the output
"""
FAIL = """
import os, signal, sys, time
with open(f"{sys.argv[2]}/{os.environ['RANK']}", "w") as file:
    file.write(str(os.getpid()))
if os.environ["RANK"] == "1":
    while not os.path.exists(f"{sys.argv[2]}/0"):
        time.sleep(0.01)
    if sys.argv[1] == "exit":
        sys.exit(7)
    if sys.argv[1] == "raise":
        raise ValueError("rank 1 has had enough")
    if sys.argv[1] == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


RESTART = """
import os, sys
from tests.multiproc.jobs import collective
import torch
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with collective(timeout=60.0) as c:
    t = torch.ones(1)
    c.all_reduce(t)
    c.barrier()
    if attempt == 0 and c.rank == 1:
        sys.exit(9)
    if attempt == 0:
        c.barrier()
    print(f"attempt {attempt} sum {t.item()}\\n", end="", flush=True)
"""


def _command(*args: str) -> list[str]:
    return [sys.executable, "-m", "accel", "launch", *args]


def _start(*args: str, **environ: str) -> subprocess.Popen[str]:
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return subprocess.Popen(
        _command(*args),
        env={**env, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[str], timeout: float = 120.0) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return process.returncode, out, err


def _gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def _assert_no_orphans(folder: Path) -> None:
    pids = [int((folder / rank).read_text()) for rank in ("0", "1")]
    end = time.monotonic() + 10
    while not all(_gone(pid) for pid in pids):
        assert time.monotonic() < end, "ranks are still running"
        time.sleep(0.05)


def test_ranks_know_their_place_and_threads(tmp_path: Path) -> None:  # T74
    script = tmp_path / "hello.py"
    script.write_text(HELLO)
    code, out, err = _end(_start("--nproc", "2", str(script), "--nproc", "x"))
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert code == 0, err
    assert sorted(out.split()) == [f"{rank}|2|{rank}|{threads}|--nproc|x" for rank in (0, 1)]
    code, out, err = _end(_start("--nproc", "1", str(script), OMP_NUM_THREADS="3"))
    assert (code, out.split()) == (0, ["0|1|0|3"]), err


def test_two_jobs_run_at_once(tmp_path: Path) -> None:  # T41
    script = tmp_path / "meet.py"
    script.write_text(MEET)
    jobs = [_start("--nproc", "2", str(script)) for _ in range(2)]
    for job in jobs:
        code, out, err = _end(job)
        assert code == 0, err
        assert out.splitlines() == ["sum 2.0"] * 2


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [("exit", 7, "rank 1 failed first: exit code 7"), ("raise", 1, "rank 1 has had enough"), ("kill", 137, "SIGKILL")],
)
def test_exit_code_of_the_first_failure_is_kept_and_nothing_runs_on(
    tmp_path: Path, how: str, code: int, said: str
) -> None:  # T39
    script = tmp_path / "fail.py"
    script.write_text(FAIL)
    got, _, err = _end(_start("--nproc", "2", str(script), how, str(tmp_path)))
    assert got == code, err
    assert said in err
    _assert_no_orphans(tmp_path)


def test_all_ranks_start_anew_where_restarts_are_left(tmp_path: Path) -> None:
    script = tmp_path / "again.py"
    script.write_text(RESTART)
    code, out, err = _end(_start("--nproc", "2", "--max-restarts", "1", str(script)))
    assert code == 0, err
    assert out.splitlines() == ["attempt 1 sum 2.0"] * 2


def test_two_agents_meet_and_their_ranks_form_one_job(tmp_path: Path) -> None:
    script = tmp_path / "meet.py"
    script.write_text(MEET)
    where = ["--nnodes", "2", "--rendezvous", f"localhost:{free_port()}", "--join-timeout", "60"]
    hosts = [_start(*where, str(script)) for _ in range(2)]
    for host in hosts:
        code, out, err = _end(host)
        assert code == 0, err
        assert out.splitlines() == ["sum 2.0"]


def test_a_host_whose_others_never_come_says_so(tmp_path: Path) -> None:  # T40
    script = tmp_path / "meet.py"
    script.write_text(MEET)
    where = ["--nnodes", "2", "--rendezvous", f"localhost:{free_port()}", "--join-timeout", "2"]
    code, _, err = _end(_start(*where, str(script)))
    assert code == 2, err
    assert "the hosts did not meet at --rendezvous localhost:" in err
    assert "within 2 s" in err


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_ranks(tmp_path: Path, stop: signal.Signals) -> None:  # T39
    script = tmp_path / "fail.py"
    script.write_text(FAIL)
    job = _start("--nproc", "2", str(script), "wait", str(tmp_path))
    end = time.monotonic() + 60
    while not all((tmp_path / rank).exists() and (tmp_path / rank).read_text() for rank in ("0", "1")):
        assert time.monotonic() < end
        time.sleep(0.05)
    job.send_signal(stop)
    code, _, err = _end(job)
    assert code == 128 + stop, err
    _assert_no_orphans(tmp_path)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--nproc", "0", "x.py"], "--nproc is 0"),
        (["--nproc", "two", "x.py"], "--nproc"),
        (["--nproc", "2", "nowhere.py"], "'nowhere.py' is not a file"),
        (["--nnodes", "2", __file__], "--rendezvous"),
        (["--rendezvous", "a:1", __file__], "--nnodes is 1"),
        (["--nnodes", "4:2", __file__], "--nnodes is '4:2'"),
        (["--nnodes", "0", __file__], "--nnodes is '0'"),
        (["--max-restarts", "-1", __file__], "--max-restarts is -1"),
        (["--join-timeout", "0", __file__], "--join-timeout is 0"),
    ],
)
def test_bad_use_is_one_line_and_exit_code_2(args: list[str], said: str) -> None:
    code, out, err = _end(_start(*args))
    assert (code, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
