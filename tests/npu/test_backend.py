"""What `accel_npu` does differently, on one NPU: each test holds a fact about torch_npu, or what becomes of it."""

from __future__ import annotations

import os
import pickle
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import accel
from accel.errors import ArgumentError, UnsupportedError
from accel.models import resnet50
from accel.precision import LossScale
from accel.scaler import Scaler


def test_emulated_npus_are_called_emulated(backend: Any) -> None:
    assert backend.origin == "emulated"
    assert backend.versions["torch_npu"]
    info = next(info for info in accel.backends() if info.name == "npu")
    assert "emulated" in str(info.hardware)
    assert "emulated CANN" in info.reason


def test_properties_say_chip_cann_physical_id_and_overflow_mode(backend: Any) -> None:
    backend.device.set(0)
    found = backend.device.properties()
    assert found.name.startswith("Ascend910B")
    assert found.cores > 0
    assert found.extra["physical_id"] == "0"
    assert found.extra["cann"]
    assert found.extra["overflow"] == "inf/nan"
    assert "transfer_to_npu" not in found.extra


def test_three_steps_of_resnet50_equal_the_cpus_exactly(start: Any) -> None:
    torch.manual_seed(0)
    model = resnet50(num_classes=10)
    torch.manual_seed(0)  # a copy of a model warns under torch_npu, whose TypedStorage copies itself
    twin = resnet50(num_classes=10)
    batches = [(torch.randn(2, 3, 32, 32), torch.randint(0, 10, (2,))) for _ in range(3)]
    session = start(precision="fp32")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    model, optimizer = session.prepare(model, optimizer)
    plain = torch.optim.SGD(twin.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    for (x, y), (there, label) in zip(batches, session.batches(batches), strict=True):
        loss = nn.functional.cross_entropy(model(there), label)
        session.backward(loss)
        session.step(optimizer)
        here = nn.functional.cross_entropy(twin(x), y)
        here.backward()
        plain.step()
        plain.zero_grad()
        assert loss.item() == here.item()
    for name, value in twin.state_dict().items():
        assert torch.equal(session.unwrap(model).state_dict()[name].cpu(), value), name


@pytest.mark.parametrize(("policy", "fast"), [("fp32", False), ("tf32", True), ("bf16", False), ("fp16", False)])
def test_hf32_is_set_read_back_and_restored(start: Any, policy: str, fast: bool) -> None:
    assert torch.npu.conv.allow_hf32 is True  # torch_npu's default: fp32 convolutions run in HF32
    assert torch.npu.matmul.allow_hf32 is False
    session = start(precision=policy)
    switches = session.backend.precision.describe()["switches"]
    assert switches["conv.allow_hf32"] == switches["matmul.allow_hf32"] == str(fast)
    assert switches["overflow"] == "inf/nan"
    session.close()
    assert torch.npu.conv.allow_hf32 is True
    assert torch.npu.matmul.allow_hf32 is False


def test_channels_last_is_refused_and_a_models_layout_made_contiguous(start: Any) -> None:
    session = start()
    with pytest.raises(UnsupportedError, match=r"prepare\.channels_last is unsupported on backend 'npu'"):
        session.prepare(nn.Conv2d(3, 4, 3), channels_last=True)
    model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    expected = model.weight.detach().clone()
    assert not model.weight.is_contiguous()
    prepared = session.prepare(model)
    assert prepared.weight.is_contiguous()
    assert torch.equal(prepared.weight.cpu(), expected)
    image = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    moved = session.backend.device.move(image)
    assert moved.is_contiguous()
    assert torch.equal(moved.cpu(), image)
    with pytest.raises(RuntimeError, match="contiguous memory format"):  # the vendor's own refusal, which this is for
        moved.contiguous(memory_format=torch.channels_last)


def test_double_silently_gives_float32_so_metrics_stay_in_float32(backend: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.ones(2, device="npu").double().dtype is torch.float32
    assert torch.empty(2, dtype=torch.float64, device="npu").dtype is torch.float64
    assert backend.device.metric_dtype is torch.float32


def test_allocator_adds_32_bytes_and_rounds_to_512(python: Any) -> None:
    """In a process of its own: a free block of earlier tests that is a little larger would be given whole."""
    done = python(
        "import torch, torch_npu\n"
        "held = []\n"
        "for size in (481, 2**20):\n"
        "    before = torch.npu.memory_allocated()\n"
        "    held.append(torch.empty(size, dtype=torch.uint8, device='npu'))\n"
        "    print(torch.npu.memory_allocated() - before)\n"
    )
    assert done.stdout.split() == ["1024", str(2**20 + 512)]


def test_absent_calls_stay_absent_until_the_backend_uses_them(backend: Any) -> None:
    """Where one appears in a new torch_npu, the backend can say more than it does."""
    backend.device.set(0)
    for name in ("memory_usage", "list_gpu_processes", "OutOfMemoryError", "CUDAGraph", "power_draw", "temperature",
                 "clock_rate", "is_tf32_supported"):  # fmt: skip
        assert not hasattr(torch.npu, name), name
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.npu.get_device_capability() is None
    with pytest.raises(RuntimeError, match="Unsupported api"):
        torch.npu.get_npu_overflow_flag()


def test_fused_sgd_needs_momentum(backend: Any) -> None:
    """The table says so: `train.fused_optimizer`."""
    backend.device.set(0)
    weight = nn.Parameter(torch.ones(3, device="npu"))
    weight.grad = torch.ones_like(weight)
    with pytest.raises(RuntimeError, match="momentum must be positive"):
        torch.optim.SGD([weight], lr=0.5, fused=True).step()
    torch.optim.SGD([weight], lr=0.5, momentum=0.9, fused=True).step()
    assert weight.tolist() == [0.5] * 3
    assert "momentum" in backend.capabilities()["train.fused_optimizer"].why


def test_operations_on_the_host_are_unknown_and_not_none(backend: Any) -> None:
    """torch_npu warns of each operator that falls back, once, and counts none."""
    backend.device.set(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.atanh(torch.zeros(2, device="npu"))
    assert "fallbacks" not in backend.device.counters()
    assert "not counted" in backend.device.uncounted()["fallbacks"]


def test_a_stream_has_no_priority(backend: Any) -> None:
    backend.device.set(0)
    with pytest.raises(RuntimeError, match="not support Stream.get_priority"):
        _ = backend.device.stream().priority


@pytest.mark.parametrize("variable", ["INF_NAN_MODE_FORCE_DISABLE=1", "INF_NAN_MODE_ENABLE=0"])
def test_fp16_is_refused_where_overflow_saturates(python: Any, variable: str) -> None:  # T14
    name, _, value = variable.partition("=")
    done = python(
        """
import accel
from accel.errors import AccelError
backend = accel.get_backend("npu")
print(backend.capabilities()["precision.fp16"].support.value)
try:
    accel.init(backend="npu", precision="fp16")
except AccelError as error:
    print(type(error).__name__, error)
try:
    with accel.init(backend="npu", precision="bf16") as session:
        print(session.backend.precision.describe()["switches"]["overflow"])
except AccelError as error:
    print(type(error).__name__, error)
""",
        **{name: value},
    )
    support, refused, mode = done.stdout.strip().splitlines()
    assert support == "unsupported"
    assert "UnsupportedError" in refused
    assert f"{name}={value}" in refused
    if name == "INF_NAN_MODE_FORCE_DISABLE":
        assert mode == "saturation"
    else:  # a 910B does not start so, whatever the precision: torch_npu's own words are passed on
        assert mode.startswith("BackendError INF_NAN_MODE_ENABLE='0'")


def test_determinism_reaches_hccl_and_names_a_users_own_value(start: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("HCCL_DETERMINISTIC", raising=False)
    session = start(deterministic=True)
    assert os.environ["HCCL_DETERMINISTIC"] == "true"
    assert "as the user set it" not in session.backend.precision.describe()["determinism"]
    monkeypatch.setenv("HCCL_DETERMINISTIC", "false")
    said = session.backend.precision.describe()["determinism"]
    assert "HCCL_DETERMINISTIC=false as the user set it, which is not deterministic" in said


def test_scaler_state_of_another_backend_loads(start: Any) -> None:  # T16, T51, T54
    """torch_npu's own scaler wants a key that no other has; accel's has one schema everywhere."""
    theirs = torch.amp.GradScaler("cpu", init_scale=1024.0).state_dict()
    with pytest.raises(KeyError, match="dynamic"):
        torch.npu.amp.GradScaler(init_scale=2.0).load_state_dict(theirs)
    session = start(precision="fp16")
    session._scaler.load_state_dict(Scaler(LossScale(init=1024.0), torch.device("cpu")).state_dict())
    assert session._scaler.tensor.item() == 1024.0
    assert session._scaler.tensor.device.type == "npu"


def test_hbm_that_is_too_small_is_recognised_as_out_of_memory(backend: Any) -> None:  # T49
    backend.device.set(0)
    total = backend.memory.stats().total
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2 * total, dtype=torch.uint8, device="npu")
    assert type(caught.value) is torch.OutOfMemoryError
    assert backend.memory.is_oom(caught.value)
    assert backend.device.explained(caught.value) is None


def test_memory_snapshot_can_be_read(backend: Any, tmp_path: Any) -> None:
    backend.device.set(0)
    kept = torch.empty(1000, device="npu")
    backend.memory.snapshot(tmp_path / "npu.pickle")
    found = pickle.loads((tmp_path / "npu.pickle").read_bytes())
    mine = [segment["total_size"] for segment in found["segments"] if segment["device"] == 0]
    assert sum(mine) == backend.memory.stats().reserved
    with pytest.raises(ArgumentError, match="its folder does not exist"):
        backend.memory.snapshot(tmp_path / "absent" / "npu.pickle")
    del kept


def test_checkpoint_holds_plain_tensors(start: Any, tmp_path: Any, python: Any) -> None:  # T51
    session = start(precision="fp16")
    model = nn.Linear(2, 2)
    model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    for x in session.batches([torch.ones(1, 2)]):
        session.backward(model(x).sum())
        session.step(optimizer)
    session.save(tmp_path / "c", model=model, optimizer=optimizer)
    weight = session.unwrap(model).weight.cpu()
    done = python(
        f"""
import accel, sys, torch
with accel.init(backend="cpu", precision="fp16") as session:
    model = torch.nn.Linear(2, 2)
    model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    session.load({str(tmp_path / "c")!r}, model=model, optimizer=optimizer)
    assert "torch_npu" not in sys.modules
    print(model.weight.tolist())
    assert all(s["momentum_buffer"].device.type == "cpu" for s in optimizer.state.values())
""",
        TORCH_DEVICE_BACKEND_AUTOLOAD="0",
    )
    assert done.stdout.strip().splitlines()[-1] == str(weight.tolist())


def test_fork_after_listing_backends_is_safe(python: Any) -> None:
    done = python(
        """
import accel, os, sys
accel.backends()
assert "torch_npu" not in sys.modules
child = os.fork()
if child == 0:
    import torch
    with accel.init(backend="npu") as session:
        torch.ones(2, device=session.device).sum().item()
    os._exit(0)
print("child", os.waitpid(child, 0)[1])
"""
    )
    assert done.stdout.strip().endswith("child 0")


def test_transfer_to_npu_is_reported(python: Any) -> None:  # T32
    done = python(
        """
import warnings; warnings.simplefilter("ignore")
import logging; logging.basicConfig(format="%(message)s")
import torch, torch_npu
from torch_npu.contrib import transfer_to_npu
import accel
with accel.init() as session:
    print(session.backend.name, session.backend.device.properties().extra["transfer_to_npu"])
"""
    )
    assert "npu torch.cuda is patched" in done.stdout
    assert "transfer_to_npu is loaded" in done.stderr


def test_late_error_is_raised_with_the_advice_that_helps(start: Any) -> None:
    from accel_npu import _errors

    told = _errors.device_failure(RuntimeError("error code is 507015\nERR00100 PTA call acl api failed."))
    assert "ASCEND_LAUNCH_BLOCKING=1" in str(told)
    session = start()
    assert session.backend.device.explained(RuntimeError("shape '[2]' is invalid")) is None


def test_visible_devices_map_logical_to_physical(python: Any) -> None:  # T31
    done = python(
        """
import accel
backend = accel.get_backend("npu")
backend.device.set(0)
print(backend.device.count(), backend.device.properties(0).extra["physical_id"])
""",
        ASCEND_RT_VISIBLE_DEVICES="1",
    )
    assert done.stdout.strip().endswith("1 1")
    bad = python("import accel; accel.get_backend('npu')", check=False, ASCEND_RT_VISIBLE_DEVICES="1,0")
    assert bad.returncode != 0
    assert "ASCEND_RT_VISIBLE_DEVICES='1,0': expected ascending ids" in bad.stderr


def test_compile_is_refused_with_the_reason(start: Any) -> None:
    session = start()
    with pytest.raises(UnsupportedError, match="inductor knows no device npu"):
        session.prepare(nn.Linear(2, 2), compile=True)
