"""SPMD: one process, 2 and 4 devices, the batch split by the compiler."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from accel.testing.models import assert_close, data, mlp, sgd, values
from accel.testing.ranks import RankPool
from tests.xla import jobs


@pytest.mark.parametrize("devices", [2, 4])
def test_spmd_equals_one_device(devices):
    with RankPool(1, env={"ACCEL_XLA_SPMD": "1", "CPU_NUM_DEVICES": str(devices)}) as pool:
        ((world_size, sharding, losses, weights),) = pool.run(jobs.spmd, 4, timeout=120.0)
    assert world_size == 1
    assert f"devices=[{devices},1]" in sharding
    expected = mlp()
    plain = sgd(expected, momentum=0.9)
    for i, loss in enumerate(losses):
        x, y = data(jobs.BATCH, seed=i)
        wanted = nn.functional.mse_loss(expected(x), y)
        torch.testing.assert_close(loss, wanted.item(), rtol=1e-6, atol=1e-6)
        wanted.backward()
        plain.step()
        plain.zero_grad()
    assert_close(weights, values(expected), 1e-6)


def test_unknown_value_of_the_setting_is_refused():
    done = subprocess.run(
        [sys.executable, "-c", "import accel; accel.init()"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "ACCEL_XLA_SPMD": "yes"},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "ACCEL_XLA_SPMD='yes': expected 1 for on, or 0 for off" in done.stderr
