"""What `accel.backends()` says of NVIDIA GPUs: one clear reason each, and nothing initialised on the way."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import accel
import accel_cuda
from accel.errors import BackendError
from accel_cuda import SPEC, nvml

A100 = "NVIDIA A100-SXM4-80GB|GPU-aaaa1111-0|8.0"
A100_MIG = "NVIDIA A100-SXM4-40GB|GPU-bbbb2222-0|8.0|MIG-1111,MIG-2222"
V100 = "Tesla V100-SXM2-32GB|GPU-cccc3333-0|7.0"


def info():
    (found,) = [one for one in accel.backends() if one.name == "cuda"]
    return found


def test_a_usable_machine_names_its_gpus_driver_and_cuda(machine):
    machine(A100, A100)
    found = info()
    assert found.usable
    assert found.origin == "measured"
    assert found.hardware == "2 NVIDIA GPU(s)"
    assert found.reason == "2 x NVIDIA A100-SXM4-80GB; collectives by NCCL"
    assert found.versions["nvidia_driver"] == "550.54.15"
    assert found.versions["cuda"] == "12.8"


def test_no_gpu(machine):
    assert info().reason == "no NVIDIA GPU is present (no /dev/nvidia* device file)"
    assert SPEC.hardware() is None


def test_a_gpu_without_a_driver_is_hardware_that_cannot_be_used(machine, tmp_path):
    pci = tmp_path / "sys/bus/pci/devices/0000:07:00.0"
    pci.mkdir(parents=True)
    (pci / "vendor").write_text("0x10de\n")
    (pci / "class").write_text("0x030200\n")
    assert info().hardware == "1 NVIDIA GPU(s)"
    assert "on the PCI bus, but there is no /dev/nvidia* device file: the driver is not loaded" in info().reason
    (pci / "class").write_text("0x030000\n")  # a display card may be there for a screen alone
    assert info().hardware is None


def test_a_cpu_build_of_torch_beside_a_gpu(machine):
    machine(A100, build=None)
    assert "is a CPU build; install a CUDA build of torch" in info().reason


@pytest.mark.parametrize(
    ("init", "words"),
    [(9, "kernel driver is not loaded"), (18, "restart the machine"), (4, r"error 4 \(Insufficient Permissions\)")],
)
def test_a_driver_that_cannot_be_asked(machine, init, words):
    machine(A100, init=init)
    assert not info().usable
    with pytest.raises(nvml.NvmlError, match=words):
        nvml.driver()
    assert info().reason.startswith("1 NVIDIA GPU(s) is present, but ")


def test_a_driver_without_its_library(machine, monkeypatch):
    machine(A100)
    monkeypatch.setattr(nvml, "LIBRARY", "libnvidia-ml-absent.so.1")
    assert "the driver's library libnvidia-ml-absent.so.1 cannot be loaded" in info().reason


def test_a_driver_too_old_for_the_build(machine):
    machine(A100, driver="470.82.01", cuda=11040)
    assert "its driver 470.82.01 runs CUDA 11.4 at most" in info().reason
    assert "is built for CUDA 12.8: update the driver" in info().reason
    machine(A100, driver="525.60.13", cuda=12000)  # a driver of the same major version runs it
    assert info().usable


def test_a_chip_too_old_for_the_build(machine):
    machine(V100, cuda=13000, build="13.0")
    assert "Tesla V100-SXM2-32GB has compute capability 7.0" in info().reason
    assert "install a torch built for CUDA 12" in info().reason
    machine(V100)
    assert info().usable


def test_hidden_gpus(machine, monkeypatch):
    machine(A100, A100)
    for value in ("", " ", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
        assert info().reason == (
            f"CUDA_VISIBLE_DEVICES={value!r} hides all 2 GPU(s) from this process; unset it to use them"
        )


def test_present_but_unusable_hardware_is_never_replaced_by_the_cpu(machine, monkeypatch):
    machine(A100, build=None)
    monkeypatch.delenv("ACCEL_BACKEND", raising=False)
    with pytest.raises(BackendError, match="ACCEL_BACKEND=cpu to run on CPU on purpose"):
        accel.get_backend()
    with pytest.raises(BackendError, match="'cuda' cannot be used.*CPU build"):
        accel.get_backend("cuda")


def test_torch_cuda_patched_by_an_npus_shim_is_refused(machine, monkeypatch):  # T32
    machine(A100)
    monkeypatch.setitem(sys.modules, "torch_npu.contrib.transfer_to_npu", torch)
    with pytest.raises(BackendError, match="transfer_to_npu has replaced torch.cuda"):
        SPEC.load()


def test_the_driver_lists_mig_devices(machine):
    machine(A100, A100_MIG, V100)
    assert [gpu.mig for gpu in nvml.driver().gpus] == [None, ("MIG-1111", "MIG-2222"), None]
    assert [gpu.capability for gpu in nvml.driver().gpus] == [(8, 0), (8, 0), (7, 0)]


def test_the_driver_counts_energy_where_the_chip_does(machine):
    machine(A100, V100, "Tesla P100-PCIE-16GB|GPU-6666|6.0")
    uuids = [gpu.uuid for gpu in nvml.driver().gpus]
    assert [nvml.energy(uuid) for uuid in uuids] == [1.5, 3.0, None]  # joules, from millijoules
    assert nvml.energy("MIG-1111") is None


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (0x0, ()),
        (0x1, ()),
        (0x2, ()),
        (0x4, ("power limit",)),
        (0x60, ("heat",)),
        (0x88, ("hardware slowdown", "power brake")),
    ],
)
def test_the_driver_tells_for_what_clocks_are_held_down(machine, held, said):
    machine(A100, held=held, busy=3)
    assert nvml.disturbance("GPU-aaaa1111-0") == (said, 3, {})


def test_what_the_driver_does_not_tell_of_a_device_is_unknown_with_a_reason(machine):
    machine(A100_MIG, busy=0)
    throttled, processes, reasons = nvml.disturbance("MIG-1111")
    assert (throttled, processes) == (None, None)
    assert "nvmlDeviceGetCurrentClocksThrottleReasons failed with NVML error 3" in reasons["throttled"]
    assert "a container may hide them" in reasons["processes"]
    machine(A100, init=9)
    throttled, processes, reasons = nvml.disturbance("GPU-aaaa1111-0")
    assert (throttled, processes) == (None, None)
    assert all("kernel driver is not loaded" in reason for reason in reasons.values())
    assert set(reasons) == {"throttled", "processes"}


def test_what_the_installed_torch_is_built_for_is_read_without_importing_it():
    assert accel_cuda._build()[0] == torch.version.cuda


def test_listing_loads_no_torch_and_survives_a_fork(nvml_library):  # T32
    code = (
        "import os, sys\n"
        "from accel_cuda import SPEC, nvml\n"
        f"nvml.LIBRARY = {str(nvml_library)!r}\n"
        "print(SPEC.probe().usable, len(nvml.driver().gpus), 'torch' in sys.modules, flush=True)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    print(len(nvml.driver().gpus), flush=True); os._exit(0)\n"
        "os.waitpid(child, 0)\n"
    )
    environ = {**os.environ, "FAKE_NVML": f"cuda=12040;gpu={A100}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "1", "False", "1"]
