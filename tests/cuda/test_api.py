"""Every function of torch that the CUDA backend calls is there, and takes what it is given; in any build of torch.

The Python files of torch.cuda are the same in its CPU and CUDA builds. `make test` runs this with torch 2.9 (a CUDA
build) and 2.13; docs/cuda.md names the releases that were looked at otherwise.
"""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.distributed as dist
from torch.cuda import memory

MODEL = torch.nn.Linear(1, 1)
CALLS = [
    (torch.cuda.init, (), {}),
    (torch.cuda.is_initialized, (), {}),
    (torch.cuda.device_count, (), {}),
    (torch.cuda.current_device, (), {}),
    (torch.cuda.set_device, (0,), {}),
    (torch.cuda.synchronize, (0,), {}),
    (torch.cuda.get_device_properties, (0,), {}),
    (torch.cuda.get_device_name, (0,), {}),
    (torch.cuda.get_device_capability, (0,), {}),
    (torch.cuda.get_arch_list, (), {}),
    (torch.cuda.get_rng_state, (0,), {}),
    (torch.cuda.set_rng_state, (None, 0), {}),
    (torch.cuda.current_stream, (), {}),
    (torch.cuda.stream, (None,), {}),
    (torch.cuda.make_graphed_callables, (MODEL, (None,)), {}),
    (torch.cuda.mem_get_info, (0,), {}),
    (torch.cuda.memory_stats, (0,), {}),
    (torch.cuda.reset_peak_memory_stats, (0,), {}),
    (torch.cuda.empty_cache, (), {}),
    (torch.cuda.set_per_process_memory_fraction, (0.5, 0), {}),
    (memory._dump_snapshot, ("file",), {}),
    (memory._record_memory_history, (), {"stacks": "python", "max_entries": 1}),
    (memory._record_memory_history, (), {"enabled": None}),
    (torch.cuda.nccl.version, (), {}),
    (torch.backends.cudnn.version, (), {}),
    (torch.use_deterministic_algorithms, (True,), {}),
    (torch.autocast.__init__, (None, "cuda"), {"dtype": None, "enabled": True, "cache_enabled": False}),
    (
        dist.init_process_group,
        ("nccl",),
        {"store": None, "rank": 0, "world_size": 1, "timeout": None, "device_id": None},
    ),
    (dist.new_group, ([0],), {"timeout": None, "backend": "nccl"}),
    (dist.all_reduce, (None, None, None), {"async_op": True}),
    (dist.broadcast, (None, 0, None), {"async_op": True}),
    (dist.all_to_all_single, (None, None), {"group": None, "async_op": True}),
    (dist.isend, (None, 0, None), {}),
    (dist.irecv, (None, 0, None), {}),
    (dist.destroy_process_group, (None,), {}),
    (torch.optim.SGD.__init__, (None, []), {"lr": 0.1, "momentum": 0.9, "fused": True}),
    (torch.nn.SyncBatchNorm.convert_sync_batchnorm, (None,), {}),
    (torch.compile, (MODEL,), {}),
]


@pytest.mark.parametrize(("function", "args", "kwargs"), CALLS, ids=lambda value: getattr(value, "__qualname__", None))
def test_the_call_fits_the_signature(function, args, kwargs):
    inspect.signature(function).bind(*args, **kwargs)


def test_methods_that_are_bound_in_cpp_exist():
    assert hasattr(torch.cuda.Stream, "wait_event")
    for name in ("record", "query", "synchronize", "wait", "elapsed_time"):
        assert hasattr(torch.cuda.Event, name), name
    assert "enable_timing" in inspect.signature(torch.cuda.Event.__new__).parameters
    assert hasattr(torch.Tensor, "record_stream")
    assert hasattr(dist.ProcessGroup, "abort")
    for unit in (torch.backends.cuda.matmul, torch.backends.cudnn, torch.backends.cudnn.conv, torch.backends.cudnn.rnn):
        assert unit.fp32_precision in ("none", "ieee", "tf32")
    for name in ("allow_fp16_reduced_precision_reduction", "allow_bf16_reduced_precision_reduction"):
        assert getattr(torch.backends.cuda.matmul, name) is not None
    assert torch.get_device_module("cuda") is torch.cuda


def test_the_words_that_the_cuda_build_gives_for_out_of_memory_have_a_type():  # T49
    assert issubclass(torch.OutOfMemoryError, RuntimeError)


def test_nccls_own_record_is_read_where_this_torch_has_one() -> None:
    import torch

    from accel_cuda.transport import CudaTransport

    record = CudaTransport().flight_record()
    if not hasattr(torch._C._distributed_c10d, "_dump_nccl_trace_json"):
        assert record is None
    else:
        assert record["entries"] == []  # nothing has run
        assert record["version"]
