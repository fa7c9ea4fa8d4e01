"""What accel_tpu calls exists in the released torch_tpu and does what the backend takes it to do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from accel import _probe
from accel.capabilities import Support
from accel.errors import ArgumentError, LaunchError, UnsupportedError

pytestmark = pytest.mark.usefixtures("registered")


@pytest.fixture
def device(registered):
    from accel_tpu.device import TpuDevice

    return TpuDevice()


@pytest.fixture
def numerics(registered):
    from accel_tpu.numerics import TpuNumerics

    numerics = TpuNumerics()
    yield numerics
    numerics.restore()


def test_versions_are_those_the_backend_was_written_against():
    assert _probe.versions("torch_tpu") == {"torch_tpu": "0.2.0"}


def test_there_is_one_device_of_type_tpu(device, registered):
    assert (device.count(), device.current(), device.kind) == (1, 0, "eager")
    assert device.torch_device == registered.device("tpu", 0)
    device.set(0)
    with pytest.raises(ArgumentError, match="tpu has 1 device"):
        device.set(1)


def test_unknown_chip_has_no_memory_size_instead_of_a_guess(device):
    found = device.properties()
    assert found.name == "TPU"
    assert found.total_memory is None
    assert found.extra["libtpu"]


def test_compilations_are_counted(device):
    assert device.counters() == {"compiles": 0, "fallbacks": 0}


def test_event_can_time_and_a_stream_is_refused(device):
    assert device.event(timing=True).device.type == "tpu"
    with pytest.raises(UnsupportedError, match="device.stream is unsupported on backend 'tpu'"):
        device.stream()


@pytest.mark.parametrize(("policy", "precision"), [("fp32", "highest"), ("tf32", "medium"), ("bf16", "highest")])
def test_policy_sets_the_precision_and_puts_it_back(numerics, registered, policy, precision):
    before = numerics.read()
    numerics.apply(policy, deterministic=False)
    assert numerics.read()["float32_matmul_precision"] == precision
    assert numerics.read()["allow_excess_precision"] in ("True", "False")
    numerics.restore()
    assert numerics.read() == before


def test_autocast_computes_in_bf16_and_not_in_the_vendors_default(numerics, registered):
    assert registered.get_autocast_dtype("tpu") is registered.float16
    with registered.autocast("tpu", dtype=numerics.autocast_dtype("bf16")):
        assert registered.get_autocast_dtype("tpu") is registered.bfloat16


def test_fp16_is_refused_because_the_scalers_operation_is_missing(numerics, registered):
    with pytest.raises(UnsupportedError, match="precision 'fp16' is unsupported on tpu.*GradScaler"):
        numerics.apply("fp16", deterministic=False)
    for name in ("_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_"):
        kernel = registered._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "PrivateUse1")
        assert not kernel, f"torch_tpu has {name} now: fp16's reason needs another look"


def test_table_answers_all_that_the_cpus_does(registered):
    from accel_cpu.table import capabilities as cpus
    from accel_cpu.transport import CpuTransport
    from accel_tpu import UNVERIFIED
    from accel_tpu.table import capabilities
    from accel_tpu.transport import TpuTransport

    table = capabilities(TpuTransport())
    assert set(table) == set(cpus(CpuTransport()))
    assert all(UNVERIFIED in cell.why for cell in table.values())
    assert table["all_reduce.mean.float16"].support is Support.EMULATED
    assert table["memory.peak_reset"].support is Support.UNSUPPORTED


def test_c10d_knows_the_backend(registered):
    from accel_tpu.transport import TpuTransport

    assert registered.distributed.Backend.backend_capability[TpuTransport.c10d_backend] == ["tpu"]


def test_processes_without_the_launchers_variables_are_refused(monkeypatch, registered):
    from accel_tpu.transport import LAUNCH, TpuTransport

    for name in LAUNCH:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LaunchError, match="TORCH_TPU_TOPOLOGY.*set_tpu_launch_env"):
        TpuTransport().init(None, 0, 2, 10.0, registered.device("tpu", 0))


def test_refusals_that_this_backend_works_round_still_stand(registered):
    """When one of them goes, `torch.tpu` can be used as other device modules are."""
    module = registered.get_device_module("tpu")
    for name in ("device_count", "current_device", "synchronize", "get_rng_state"):
        with pytest.raises(RuntimeError, match="internal to TorchTPU"):
            getattr(module, name)()


START = """
import sys
from torch_tpu._internal.utils import hardware
hardware.get_tpu_device_count = lambda: 1
import accel_tpu
try:
    accel_tpu.SPEC.load()
except accel_tpu.BackendError as error:
    print("refused:", error)
"""


def test_a_tpu_that_does_not_start_is_an_error_and_not_the_end_of_the_process():
    """libtpu finds none here; without asking first, the first operation would end the process with SIGABRT."""
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "is present, but does not start: " in done.stdout


ZEROS = """
from torch_tpu._internal.utils import hardware
hardware.get_tpu_device_count = lambda: 1
from torch_tpu import _loader
_loader.load()
from accel_tpu.device import TpuDevice
from accel_tpu.memory import TpuMemory
memory = TpuMemory(TpuDevice())
stats = memory.stats()
print(stats.allocated, stats.total, stats.reasons["total"])
memory.reset_peak()
"""


def test_memory_of_a_client_that_gives_none_is_unknown_and_not_zero():  # T48
    done = subprocess.run([sys.executable, "-c", ZEROS], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip().startswith("None None torch_tpu gave no figures")
