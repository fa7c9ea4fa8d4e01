"""SPMD: one process, 2 and 4 devices, the batch split by the compiler."""

from __future__ import annotations

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
