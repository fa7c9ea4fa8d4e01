"""Several XLA devices as replicas: 2 and 4 threads of one process on PJRT's CPU client."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest

import accel
from accel import parity
from accel.errors import LaunchError
from accel.testing.models import assert_close, data, reference, values
from accel.testing.ranks import RankPool, run_ranks
from tests.xla import jobs


@pytest.fixture(scope="module", params=[2, 4])
def replicas(request):
    """One process for each number of devices, replaced after a failure."""
    with RankPool(request.param, backend="xla") as pool:
        yield pool


def test_collectives_have_one_meaning(replicas):  # T23
    size = replicas.world_size
    mine = [[rank + 1.0, rank + 2.0] for rank in range(size)]
    columns = list(zip(*mine, strict=True))
    for rank, found in enumerate(replicas.run(jobs.collectives)):
        assert found["sum"] == ([sum(c) for c in columns], True)
        assert found["mean"] == ([sum(c) / size for c in columns], True)
        assert found["min"] == ([min(c) for c in columns], True)
        assert found["max"] == ([max(c) for c in columns], True)
        assert found["product"] == ([math.prod(c) for c in columns], True)
        assert found["bf16"] == [sum(range(1, size + 1))]
        assert found["async"] == found["sum"][0]
        assert found["all_gather"] == mine
        assert found["reduce_scatter"] == [size * (2.0 * rank + k) + sum(range(size)) for k in (0, 1)]
        assert found["least"] == [2.0 * rank, 2.0 * rank + 1]
        assert found["broadcast"] == mine[1]
        assert found["unlike NaN"] == [1.0]
        assert found["all_to_all"] == [10.0 * sender + rank for sender in range(size)]
        assert found["objects"] == [{"rank": sender} for sender in range(size)]
        assert len(found["refused"]) == 3
        assert all("unsupported" in text for text in found["refused"])


@pytest.mark.parametrize(("accumulate", "clip"), [(1, None), (2, None), (1, 0.05)])
def test_data_parallel_equals_the_whole_batch(replicas, accumulate, clip):  # T24
    steps = 4
    whole = reference([[data(jobs.BATCH * accumulate)]] * steps, momentum=0.9, clip=clip)
    for got, _ in replicas.run(jobs.train, steps, accumulate, clip):
        assert_close(got, values(whole), 1e-5)


def test_data_parallel_equals_gloo(replicas):  # T24
    if replicas.world_size != 2:
        return
    gloo = run_ranks(jobs.train, 2, 3, 1, 0.05, env={"ACCEL_BACKEND": "cpu"})
    for (got, _), (expected, _) in zip(replicas.run(jobs.train, 3, 1, 0.05), gloo, strict=True):
        assert_close(got, expected, 1e-5)


def test_counter_is_flat_after_the_optimizers_state_appeared(replicas):  # T59
    for _, compiles in replicas.run(jobs.train, 6):
        assert compiles[2:] == compiles[2:3] * 4, compiles


def test_missing_rank_is_named_within_the_timeout(replicas):  # T38
    last = replicas.world_size - 1
    for rank, said in enumerate(replicas.run(jobs.late, last)):
        assert said == "passed" if rank == last else f"rank {last} did not come" in said


@pytest.mark.parametrize("at", [1, 3])
def test_failure_between_reduction_and_cut_reaches_the_others(replicas, at):  # T39
    for rank, said in enumerate(replicas.run(jobs.fails_inside_a_step, at)):
        failed = "ValueError: the hook is broken"
        assert said == (failed if rank == 1 else f"CollectiveError: rank 1 aborted: {failed}")


@pytest.mark.parametrize("who", ["all", "0", "1", "metric"])
def test_save_returns_whoever_calls_it(replicas, tmp_path, who):  # T58
    replicas.run(jobs.saves, str(tmp_path / "c"), who)
    assert (tmp_path / "c").exists() is (who in ("all", "0"))


def test_weights_are_equal_and_masks_differ_by_rank_and_step(replicas):  # T61
    found = replicas.run(jobs.streams)
    assert all(weights == found[0][0] for weights, _ in found)
    masks = [tuple(mask) for _, drawn in found for mask in drawn]
    assert len(set(masks)) == 2 * replicas.world_size
    again = replicas.run(jobs.streams)
    assert [drawn for _, drawn in again] == [drawn for _, drawn in found]


# -- starting them -----------------------------------------------------------------------------------------------------

SCRIPT = """
import sys, torch, accel
from torch import nn
with accel.init(timeout=20.0) as s:
    model = nn.Linear(2, 1)
    called, optimizer = s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for (x,) in s.batches([(torch.ones(4, 2),)] * 3):
        s.backward(called(x).square().mean())
        s.step(optimizer)
    if s.rank == 1 and sys.argv[1:] == ["fail"]:
        raise SystemExit(7)
    s.barrier()
    s.print("trained on", s.world_size, __name__)
"""


def launch(tmp_path, *arguments, through=(), environ=None):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    return subprocess.run(
        [sys.executable, "-m", "accel", "launch", "--nproc", "2", *through, str(script), *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **(environ or {})},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def test_launch_trains_in_replicas(tmp_path):
    done = launch(tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    # gloo's threads write to the same stdout, and their lines may be cut anywhere: count ours
    assert done.stdout.count("trained on 2 __main__") == 1, done.stdout


def test_a_script_in_replicas_leaves_one_trace(tmp_path):
    """Each replica is a thread with a recorder of its own."""
    trace = tmp_path / "trace"
    done = launch(tmp_path, through=("-m", "accel", "parity", "record", "--steps", "2", "--out", str(trace)))
    assert done.returncode == 0, done.stderr[-3000:]
    found = parity.read(trace)
    assert (found.run["backend"], len(found.ranks), found.steps) == ("xla", 2, 2)
    assert parity.compare(found, found).agree


def test_launch_ends_with_the_failing_replicas_code(tmp_path):  # T39
    done = launch(tmp_path, "fail")
    assert done.returncode == 7, done.stderr[-3000:]
    assert "rank 1 aborted: SystemExit: 7" in done.stderr


def test_devices_that_differ_from_nproc_are_refused(tmp_path):
    done = launch(tmp_path, environ={"CPU_NUM_DEVICES": "3"})
    assert done.returncode != 0
    assert "CPU_NUM_DEVICES='3', but 2 replicas were asked for" in done.stderr


def test_processes_of_a_launcher_that_xla_does_not_know_are_refused(monkeypatch):
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match="WORLD_SIZE=2, but torch_xla sees a world of 1.*accel launch --nproc"):
        accel.init(backend="xla")
