"""Contract of `accel.checkpoint`: activations are recomputed and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import accel
from accel.errors import (
    ArgumentError,
    UnsupportedError,
)
from accel.testing.models import sgd
from accel.testing.ranks import RankPool
from accel.testing.test_memory import needs


class Recomputed(nn.Module):
    """A BatchNorm block with dropout, computed plainly or with its activations recomputed."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.4), nn.ReLU(inplace=True))
        self.head = nn.Linear(4 * 36, 3)
        generator = torch.Generator().manual_seed(4)  # of its own: ranks that are threads share torch's
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.normal_(std=0.2, generator=generator)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "module":
            x = accel.checkpoint(self.block, x)
        elif self.how == "function":
            x = accel.checkpoint(lambda t: self.block(t) * 1, x, modules=[self.block])
        else:
            x = self.block(x)
        out: torch.Tensor = self.head(x.flatten(1))
        return out


def train_recomputed(session: Any, how: str, compiled: bool = False) -> dict[str, torch.Tensor]:
    model = Recomputed(how)
    called, optimizer = session.prepare(model, sgd(model, momentum=0.9), compile=compiled)
    generator = torch.Generator().manual_seed(2)
    for x in session.batches([torch.randn(4, 3, 8, 8, generator=generator) for _ in range(6)]):
        with session.autocast():
            loss = called(x).float().square().mean()
        session.backward(loss)
        session.step(optimizer)
    return {name: value.detach().cpu() for name, value in session.unwrap(called).state_dict().items()}


def check_same(recomputed: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> None:
    """Parameters, running statistics and the count of batches are those of the plain run, dropout masks included."""
    assert int(recomputed["block.1.num_batches_tracked"]) == 6
    torch.testing.assert_close(recomputed, plain, rtol=1e-5, atol=1e-6)


def recomputes(backend: Any) -> None:
    cell = backend.capabilities()["train.checkpoint"]
    if not cell.available:
        pytest.skip(f"unsupported by the capability table: {cell.why}")


@pytest.mark.parametrize("policy", ["fp32", "bf16"])
@pytest.mark.parametrize("how", ["module", "function"])
def test_recomputed_block_changes_its_buffers_once(backend: Any, start: Any, how: str, policy: str) -> None:  # T08
    """With accumulation, and under autocast in bf16."""
    recomputes(backend)
    plain, recomputed = (train_recomputed(start(precision=policy, accumulate=2), one) for one in ("plain", how))
    check_same(recomputed, plain)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method:DeprecationWarning")  # inductor imports it (torch 2.13)
def test_recomputed_block_is_the_same_under_torchs_compiler(backend: Any, start: Any) -> None:  # T08
    recomputes(backend)
    needs(backend, "prepare.compile")
    plain, recomputed = (train_recomputed(start(accumulate=2), one, compiled=True) for one in ("plain", "module"))
    check_same(recomputed, plain)


def trained_on_rank(how: str) -> dict[str, torch.Tensor]:
    with accel.init(precision="bf16", accumulate=2, timeout=60) as session:
        return train_recomputed(session, how)


def test_recomputed_block_is_the_same_between_ranks(backend: Any, ranks: RankPool) -> None:  # T08
    """Under DDP where the backend has it, and autocast, with masks of each rank's own, in windows of two."""
    recomputes(backend)
    plain, recomputed = (ranks.run(trained_on_rank, how, timeout=120) for how in ("plain", "module"))
    for mine, theirs in zip(recomputed, plain, strict=True):
        check_same(mine, theirs)
    weights = [{name: value for name, value in state.items() if "running" not in name} for state in recomputed]
    torch.testing.assert_close(weights[1], weights[0], rtol=0, atol=0)


def test_recomputing_is_refused_where_it_could_not_be_right(backend: Any) -> None:
    x = torch.ones(2, 3, device=backend.device.torch_device, requires_grad=True)
    with pytest.raises(ArgumentError, match="modules="):
        accel.checkpoint(lambda t: t * 2, x)
    if not backend.capabilities()["train.checkpoint"].available:
        with pytest.raises(UnsupportedError, match="checkpoint"):
            accel.checkpoint(nn.Identity(), x)
