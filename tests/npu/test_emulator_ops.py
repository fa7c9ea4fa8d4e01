"""The emulated operators: results that are the CPU's to the last bit, training of three kinds of model, and which
operators run on the CPU instead.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_npu  # noqa: F401 - where torch does not load it by itself
from torch import nn
from torch.nn import functional

from accel.models import resnet50
from accel.testing.ranks import run_ranks

HERE = Path(__file__).parent
TRAIN = HERE / "training.py"


def test_resnet50_has_the_parameters_of_the_cpu_after_three_steps() -> None:
    torch.manual_seed(0)
    on_cpu = resnet50(num_classes=10)
    torch.manual_seed(0)  # a copy of a model warns under torch_npu, whose TypedStorage copies itself
    on_npu = resnet50(num_classes=10).npu()
    x, y = torch.randn(2, 3, 32, 32), torch.randint(0, 10, (2,))
    for model, device in ((on_cpu, "cpu"), (on_npu, "npu")):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
        for _ in range(3):
            optimizer.zero_grad()
            functional.cross_entropy(model(x.to(device)), y.to(device)).backward()
            optimizer.step()
    for (name, expected), found in zip(on_cpu.state_dict().items(), on_npu.state_dict().values(), strict=True):
        assert torch.equal(found.cpu(), expected), name


ELEMENTWISE = (
    "abs", "ceil", "erf", "exp", "floor", "isfinite", "isnan", "log", "logical_not", "neg", "reciprocal", "relu",
    "rsqrt", "sigmoid", "sqrt", "tanh",
)  # fmt: skip
BINARY = (
    "add", "div", "eq", "ge", "gt", "le", "logical_and", "logical_or", "lt", "maximum", "minimum", "mul", "ne", "pow",
    "sub",
)  # fmt: skip


# torch_npu's bitwise operators warn once a process of the tensor format that they do without.
@pytest.mark.filterwarnings("ignore:Cannot create tensor with internal format")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operators_give_the_bits_of_the_cpu(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    a = (torch.rand(4, 6, generator=generator) + 0.5).to(dtype)
    b = (torch.rand(4, 6, generator=generator) + 0.5).to(dtype)
    index = torch.tensor([2, 0, 1])
    cases: dict[str, Any] = {name: lambda t, u, f=name: getattr(torch, f)(t) for name in ELEMENTWISE}
    cases |= {name: lambda t, u, f=name: getattr(torch, f)(t, u) for name in BINARY}
    cases |= {
        "add scalar": lambda t, u: t + 2,
        "rsub": lambda t, u: 1 - t,
        "pow scalar": lambda t, u: t**2,
        "clamp": lambda t, u: t.clamp(0.6, 1.0),
        "clamp min": lambda t, u: t.clamp(min=0.8),
        "where": lambda t, u: torch.where(t > u, t, u),
        "masked_fill": lambda t, u: t.masked_fill(t > 1, 0.0),
        "strided": lambda t, u: (t.t()[1:4] * 2).contiguous(),
        "cat": lambda t, u: torch.cat([t, u], 1),
        "stack": lambda t, u: torch.stack([t, u]),
        "index_select": lambda t, u: t.index_select(1, index.to(t.device)),
        "gather": lambda t, u: t.gather(1, index.to(t.device).expand(4, 3)),
        "triu": lambda t, u: t.triu(1),
        "sum": lambda t, u: t.sum(),
        "sum dim": lambda t, u: t.sum(1),
        "mean": lambda t, u: t.mean(),
        "mean dim": lambda t, u: t.mean(0, keepdim=True),
        "max": lambda t, u: t.max(),
        "max dim": lambda t, u: t.max(1).values,
        "argmax": lambda t, u: t.argmax(1),
        "amax": lambda t, u: t.amax(0),
        "any": lambda t, u: (t > 1).any(),
        "all": lambda t, u: (t > 1).all(),
        "topk": lambda t, u: t.topk(2, 1).indices,
        "norm": lambda t, u: torch.linalg.vector_norm(t),
        "bitwise": lambda t, u: ~(t > 1) & (u > 1) | (t > u),
        "bitwise of integers": lambda t, u: ~index.to(t.device) & 6 | 8,
        "softmax": lambda t, u: t.softmax(1),
        "log_softmax": lambda t, u: t.log_softmax(1),
        "gelu": lambda t, u: functional.gelu(t),
        "silu": lambda t, u: functional.silu(t),
        "layer_norm": lambda t, u: functional.layer_norm(t, (6,), u[0], u[1]),
        "embedding": lambda t, u: functional.embedding(index.to(t.device), t),
        "cross_entropy": lambda t, u: functional.cross_entropy(t, torch.tensor([0, 1, 5, 2], device=t.device)),
        "mse_loss": functional.mse_loss,
        "lerp": lambda t, u: torch.lerp(t, u, 0.3),
        "addcmul": lambda t, u: torch.addcmul(t, t, u, value=0.5),
        "addcdiv": lambda t, u: torch.addcdiv(t, t, u, value=0.5),
    }
    wrong = [name for name, case in cases.items() if not torch.equal(case(a.npu(), b.npu()).cpu(), case(a, b))]
    assert wrong == []


PRODUCTS: dict[str, Any] = {
    "mm": lambda t, u: t @ u.t(),
    "bmm": lambda t, u: torch.bmm(t.view(2, 2, 6), u.view(2, 6, 2)),
    "linear": lambda t, u: functional.linear(t, u, t[0, :4]),
    "conv": lambda t, u: functional.conv2d(t.view(1, 2, 3, 4), u.view(3, 2, 2, 2), t[0, :3]),
    "conv's gradient": lambda t, u: torch.autograd.grad(functional.conv1d(t[None], u[:, :4, None]).sum(), u)[0],
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_products_add_in_fp32_and_round_once(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(4, 6, generator=generator).to(dtype) for _ in range(2))
    for name, case in PRODUCTS.items():
        found = case(a.npu(), b.npu().requires_grad_()).detach().cpu()
        expected = case(a.float(), b.float().requires_grad_()).detach().to(dtype)
        assert torch.equal(found, expected), name


def test_dropout_keeps_the_asked_share_scales_it_and_uses_the_same_mask_backwards() -> None:
    x = torch.ones(200, 100, device="npu", requires_grad=True)
    y = functional.dropout(x, 0.25)
    y.sum().backward()
    kept = (y != 0).float().mean().item()
    assert abs(kept - 0.75) < 0.02
    assert torch.equal(y.unique().cpu(), torch.tensor([0.0, 1 / 0.75]))
    assert torch.equal(x.grad.cpu(), y.detach().cpu())
    torch.npu.manual_seed(5)
    first = torch.rand(10, device="npu")
    torch.npu.manual_seed(5)
    assert torch.equal(torch.rand(10, device="npu").cpu(), first.cpu())


@pytest.mark.parametrize("causal", [False, True])
def test_attention_has_the_gradients_of_the_cpu(causal: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    values = [torch.randn(2, 3, 7, 8, generator=generator) for _ in range(4)]
    found = []
    for device in ("cpu", "npu"):
        q, k, v = (t.to(device).detach().clone().requires_grad_() for t in values[:3])
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        y.backward(values[3].to(device))
        found.append([t.detach().cpu() for t in (y, q.grad, k.grad, v.grad)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-5)


def test_training_uses_no_fall_back_that_is_not_announced(python: Any, tmp_path: Path) -> None:
    seen = tmp_path / "fallbacks"
    lines = python(TRAIN.read_text(), ACCEL_EMULATE_NPU_FALLBACKS=str(seen), timeout=240).stdout.splitlines()
    assert len(lines) > 10
    assert [line for line in lines if not line.endswith(" ok")] == []
    announced = {line for line in (HERE / "announced-fallbacks.txt").read_text().split("\n") if line and line[0] != "#"}
    fell_back = set(seen.read_text().split()) if seen.exists() else set()
    assert fell_back == announced, "an operator entered or left the set of those that run on the CPU"


def test_an_operator_that_is_not_emulated_runs_on_the_cpu_and_is_named(python: Any, tmp_path: Path) -> None:
    seen = tmp_path / "fallbacks"
    code = "import torch, torch_npu; print(torch.atanh(torch.zeros(2, device='npu')).tolist())"
    assert python(code, ACCEL_EMULATE_NPU_FALLBACKS=str(seen)).stdout == "[0.0, 0.0]\n"
    assert "atanh" in seen.read_text().split()


def _sync_batch_norm() -> tuple[torch.Tensor, ...]:
    rank = int(os.environ["RANK"])
    torch.npu.set_device(rank)
    torch.distributed.init_process_group("hccl", rank=rank, world_size=2)
    torch.manual_seed(0)
    x = torch.randn(8, 3, 5, 5)
    layer = nn.SyncBatchNorm(3).npu()
    y = layer(x[4 * rank : 4 * rank + 4].npu().requires_grad_())
    y.pow(3).sum().backward()
    found = (y.detach(), layer.running_mean, layer.running_var, layer.weight.grad)
    torch.distributed.destroy_process_group()
    return tuple(t.cpu() for t in found)


def test_sync_batch_norm_over_two_ranks_is_batch_norm_over_the_whole() -> None:
    ranks = run_ranks(_sync_batch_norm, 2, timeout=100)
    torch.manual_seed(0)
    layer, x = nn.BatchNorm2d(3), torch.randn(8, 3, 5, 5)
    y = layer(x)
    y.pow(3).sum().backward()
    for rank, (out, mean, variance, _) in enumerate(ranks):
        torch.testing.assert_close(out, y[4 * rank : 4 * rank + 4].detach(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close((mean, variance), (layer.running_mean, layer.running_var), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ranks[0][3] + ranks[1][3], layer.weight.grad, rtol=1e-3, atol=1e-3)
