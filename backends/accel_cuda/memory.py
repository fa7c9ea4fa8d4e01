"""Memory of NVIDIA GPUs: PyTorch's caching allocator, as every eager device has it."""

from __future__ import annotations

from accel.eager_memory import EagerMemory


class CudaMemory(EagerMemory):
    """Words of cuBLAS and cuDNN for "out of memory" (torch 2.9 to 2.14); CUDA and NCCL say so in these words."""

    oom_texts = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
