"""NCCL's faults said before NCCL meets them: interfaces, shared GPUs, and waits that would block for ever."""

from __future__ import annotations

import re

import pytest
import torch

import accel
from accel._call import CallWatch
from accel.errors import ArgumentError, BackendError, CollectiveTimeout
from accel.testing.ranks import RankFailure, run_ranks
from accel_cuda.memory import CudaMemory
from accel_cuda.transport import CudaTransport, check_interfaces, explained

PRESENT = ["lo", "eth0", "eth1", "docker0", "ib0"]


@pytest.mark.parametrize("value", [None, "", "eth", "=eth0", "ib,eth", "^docker,lo", "^=lo", "eth0:5000"])
def test_a_list_that_selects_an_interface_passes(value):
    check_interfaces(value, PRESENT)


@pytest.mark.parametrize("value", ["bond0", "=eth", "^l,e,d,i", "ens,enp"])
def test_a_list_that_selects_no_interface_is_refused_before_nccl(value):
    with pytest.raises(BackendError, match="selects none of this host's network interfaces, which are lo, eth0") as e:
        check_interfaces(value, PRESENT)
    assert f"NCCL_SOCKET_IFNAME={value!r}" in str(e.value)


def test_the_interfaces_are_checked_when_the_fabric_is_joined(monkeypatch):
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "no-such-interface")
    with pytest.raises(BackendError, match="no-such-interface"):
        CudaTransport().init(None, 0, 2, 5.0, torch.device("cuda", 0))


def test_what_nccl_says_of_itself_gets_a_remedy():
    device = torch.device("cuda", 0)
    none = RuntimeError(
        "NCCL error in: X.cpp:1\nncclInternalError: Internal check failed.\nBootstrap : no socket interface found"
    )
    assert isinstance(explained(none, 1, device), BackendError)
    assert "set NCCL_SOCKET_IFNAME to one" in str(explained(none, 1, device))
    twice = RuntimeError("ncclInvalidUsage\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 7000")
    assert "give every rank a GPU of its own" in str(explained(twice, 1, device))
    other = RuntimeError("something else")
    assert explained(other, 1, device) is other


def _start_on_one_gpu() -> str:
    from accel.eager import EagerDevice

    EagerDevice.identity = lambda self, index=None: "GPU-aaaa"  # type: ignore[method-assign]
    accel.init(backend="cpu", timeout=30.0)
    return "started"


@pytest.mark.timeout(120)
def test_two_ranks_on_one_device_are_refused_on_every_rank():  # T35
    with pytest.raises(RankFailure) as caught:
        run_ranks(_start_on_one_gpu, 2, timeout=60.0)
    for text in caught.value.ranks.values():
        assert re.search(r"ArgumentError: ranks 0, 1 would share one device, GPU-aaaa on \S+: every rank needs", text)


def test_a_rank_without_a_gpu_is_told_how_many_there_are():  # T35
    from accel._init import _device_index

    class Few:
        name = "cuda"

        class device:  # noqa: N801
            @staticmethod
            def count():
                return 2

    assert _device_index(1, Few) == 1
    with pytest.raises(ArgumentError, match="local rank 2 has no device: cuda shows 2 to this process"):
        _device_index(2, Few)


def test_waiting_on_the_host_for_an_operation_that_hangs_has_a_limit():  # T28, T38
    """A fabric that orders streams: its wait returns at once, and the device never finishes."""

    class Hanging:
        def record(self):
            pass

        def query(self):
            return False

    class Device:
        def flush(self):
            pass

        def event(self):
            return Hanging()

        def synchronize(self):
            raise AssertionError("it would block for ever")

    class Launcher:
        joined, stuck, device, transport = True, False, Device(), CudaTransport()

    class Watch(CallWatch):
        def check_abort(self):
            pass

        def timed_out(self, limit):
            return CollectiveTimeout(f"after {limit} s")

    watch = Watch(Launcher(), None)
    with pytest.raises(CollectiveTimeout, match=r"after 0\.05 s"):
        watch.synchronize(0.05)
    assert watch._launcher.stuck


def test_nccls_own_limit_is_longer_than_the_sessions():  # T38
    assert CudaTransport.grace > 0
    assert not CudaTransport.blocks


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "NCCL error: unhandled cuda error\nLast error:\nCuda failure 2 'out of memory'",
        "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_out_of_memory_is_recognised_in_each_librarys_words(text):  # T49
    memory = CudaMemory.__new__(CudaMemory)
    assert memory.is_oom(RuntimeError(text))
    assert memory.is_oom(torch.OutOfMemoryError("CUDA out of memory."))
    assert not memory.is_oom(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert not memory.is_oom(ValueError(text))
