"""Memory of NVIDIA GPUs: PyTorch's caching allocator, as every eager device has it."""

from __future__ import annotations

from accel.eager_memory import EagerMemory


class CudaMemory(EagerMemory):
    """Words of CUDA, cuBLAS, cuDNN and NCCL for "out of memory" (torch 2.9 to 2.14), beside torch.OutOfMemoryError."""

    oom_texts = (
        "CUDA out of memory",
        "CUDA error: out of memory",
        "CUBLAS_STATUS_ALLOC_FAILED",
        "CUDNN_STATUS_ALLOC_FAILED",
        "Cuda failure 2 'out of memory'",  # NCCL's line for a failed cudaMalloc
    )
