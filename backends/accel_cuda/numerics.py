"""The switches that decide how NVIDIA GPUs compute fp32, and what cuDNN and cuBLAS may choose from.

torch has two interfaces for TF32: `allow_tf32` and, since 2.9, `fp32_precision`. The old one sets both, the new one
itself alone, and then torch raises where the old one is read (as inductor does, 2.9): so the old one is written first
and the new one after it, with the same meaning. Out of the box convolutions compute in TF32 and matrix products do not.
Source: https://docs.pytorch.org/docs/stable/notes/cuda.html, "TensorFloat-32"; seen with torch 2.9 and 2.13.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch

from accel import _env
from accel.errors import UnsupportedError
from accel.numerics import Numerics, set_deterministic

AUTOCAST = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
TENSOR_CORES, BF16, TF32 = (7, 0), (8, 0), (8, 0)  # first compute capability with them
NO_BF16 = "it has no bfloat16 units: torch computes in fp32 and converts, slower than fp32; use fp16"
# cuBLAS is deterministic only with a workspace of fixed size, and torch refuses it without (CUDA 10.2 and later).
WORKSPACE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
UNREADABLE = "unreadable: torch.backends' old and new TF32 settings were mixed"


_cudnn: Any = torch.backends.cudnn  # its switches are made at run time, and typed nowhere


class Switches(NamedTuple):
    """Everything that `set` changes. The `allow_*` are None where torch refuses to read them."""

    matmul: str
    cudnn: str
    conv: str
    rnn: str
    allow_matmul: bool | None
    allow_cudnn: bool | None
    benchmark: bool
    cudnn_deterministic: bool
    deterministic: bool


class CudaNumerics(Numerics):
    """TF32 of convolutions and matrix products, cuDNN's search for algorithms, and determinism.

    `capability`: the lowest compute capability of the GPUs in use.
    """

    device_type = "cuda"
    not_deterministic = (
        "operations on torch's list without a deterministic form raise an error; NCCL may choose another order of sums "
        "for another number or wiring of GPUs"
    )

    deterministic_values: ClassVar[dict[str, tuple[str, ...]]] = {"CUBLAS_WORKSPACE_CONFIG": (":4096:8", ":16:8")}

    def __init__(self, capability: tuple[int, int]) -> None:
        super().__init__()
        self._capability = capability

    def snapshot(self) -> Switches:
        backends = torch.backends
        return Switches(
            matmul=backends.cuda.matmul.fp32_precision,
            cudnn=_cudnn.fp32_precision,
            conv=_cudnn.conv.fp32_precision,
            rnn=_cudnn.rnn.fp32_precision,
            allow_matmul=_old(lambda: backends.cuda.matmul.allow_tf32),
            allow_cudnn=_old(lambda: _cudnn.allow_tf32),
            benchmark=_cudnn.benchmark,
            cudnn_deterministic=_cudnn.deterministic,
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )

    def set(self, policy: str, deterministic: bool) -> None:
        if policy == "bf16" and self._capability < BF16:
            raise UnsupportedError(f"precision 'bf16' is unsupported on {_chip(self._capability)}: {NO_BF16}")
        fast = policy == "tf32"
        if deterministic:
            _env.set_vendor_variables(WORKSPACE)
        precision = "tf32" if fast else "ieee"
        self.put_back(
            Switches(
                matmul=precision, cudnn=precision, conv=precision, rnn=precision,
                allow_matmul=fast, allow_cudnn=fast,
                benchmark=not deterministic,  # a search at each new shape; what it finds may differ from run to run
                cudnn_deterministic=deterministic,
                deterministic=deterministic,
            )
        )  # fmt: skip

    def put_back(self, found: Switches) -> None:
        backends = torch.backends
        # Where the old interface could not be read it said the opposite of the new one: that is put back, too.
        old_matmul = found.matmul != "tf32" if found.allow_matmul is None else found.allow_matmul
        old_cudnn = found.conv != "tf32" if found.allow_cudnn is None else found.allow_cudnn
        _old(lambda: setattr(backends.cuda.matmul, "allow_tf32", old_matmul))
        _old(lambda: setattr(_cudnn, "allow_tf32", old_cudnn))
        backends.cuda.matmul.fp32_precision = found.matmul
        _cudnn.fp32_precision = found.cudnn  # inductor reads it for its own convolutions (2.13)
        _cudnn.conv.fp32_precision = found.conv
        _cudnn.rnn.fp32_precision = found.rnn
        _cudnn.benchmark = found.benchmark
        _cudnn.deterministic = found.cudnn_deterministic
        set_deterministic(found.deterministic)

    def read(self) -> dict[str, str]:
        now, matmul = self.snapshot(), torch.backends.cuda.matmul
        return {
            "cuda.matmul.fp32_precision": now.matmul,
            "cudnn.fp32_precision": now.cudnn,
            "cudnn.conv.fp32_precision": now.conv,
            "cudnn.rnn.fp32_precision": now.rnn,
            "cuda.matmul.allow_tf32": UNREADABLE if now.allow_matmul is None else str(now.allow_matmul),
            "cudnn.allow_tf32": UNREADABLE if now.allow_cudnn is None else str(now.allow_cudnn),
            "cuda.matmul.allow_fp16_reduced_precision_reduction": str(matmul.allow_fp16_reduced_precision_reduction),
            "cuda.matmul.allow_bf16_reduced_precision_reduction": str(matmul.allow_bf16_reduced_precision_reduction),
            "cudnn.benchmark": str(now.benchmark),
            "cudnn.deterministic": str(now.cudnn_deterministic),
            "deterministic_algorithms": str(now.deterministic),
        }

    def autocast_dtype(self, policy: str) -> torch.dtype | None:
        return AUTOCAST[policy]

    def arithmetic(self) -> str | None:
        if self._capability < (8, 0):
            return "fp32"  # TF32 units came with compute capability 8.0; the switches are read, and change nothing
        used = {torch.backends.cuda.matmul.fp32_precision, _cudnn.conv.fp32_precision}
        return {"ieee": "fp32", "tf32": "tf32"}.get(used.pop()) if len(used) == 1 else None

    def channels_last(self, policy: str) -> bool:
        # Tensor cores take channels_last; cuDNN's fp32 kernels are made for the other layout, and slower in this one.
        return policy != "fp32" and self._capability >= TENSOR_CORES


def _chip(capability: tuple[int, int]) -> str:
    return f"a GPU of compute capability {capability[0]}.{capability[1]}"


def _old(use: Callable[[], Any]) -> Any:
    """Use the old interface, without its notice that it is old; None where torch refuses (mixed) or has dropped it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*Please use the new API settings")
        try:
            return use()
        except (RuntimeError, AttributeError):
            return None
