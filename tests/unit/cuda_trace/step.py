"""Traces a ResNet-50 training step on fake tensors of device type cuda: which dtypes reach what, by policy.

    python traced_step.py GUARD.so

Prints JSON: policy -> kind of operation -> the sets of dtypes it got. Forward, loss, unscaling and the optimizer's step
are traced; autograd's engine asks CUDA itself for streams, so gradients are made by hand, of the dtype that autograd
demands of them: their parameter's.
"""

from __future__ import annotations

import ctypes
import json
import sys

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode

from accel import models
from accel.precision import LossScale, Precision
from accel.scaler import Scaler
from accel.testing import dtypes
from accel_cuda.numerics import CudaNumerics
from accel_cuda.table import capabilities
from accel_cuda.transport import CudaTransport

DEVICE = torch.device("cuda", 0)
KINDS = {"convolution": "convolution", "batch_norm": "batch_norm", "addmm": "linear", "softmax": "loss",
         "nll_loss": "loss", "_fused_sgd": "optimizer", "_amp_foreach": "unscale"}  # fmt: skip


class Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        for word, kind in KINDS.items():
            if word in func.name():
                tensors = [t for a in args for t in (a if isinstance(a, (list, tuple)) else [a])]
                tensors = [t for t in tensors if isinstance(t, torch.Tensor)]
                assert all(isinstance(t, FakeTensor) and t.device == DEVICE for t in tensors), func
                floats = [str(t.dtype).removeprefix("torch.") for t in tensors if t.is_floating_point()]
                self.seen.setdefault(kind, set()).add(tuple(dict.fromkeys(floats)))
                if kind in ("optimizer", "unscale"):
                    return None  # they write in place and return nothing; fake tensors have no rule for them
        return func(*args, **(kwargs or {}))


def trace(policy: str) -> dict[str, list[list[str]]]:
    numerics = CudaNumerics((9, 0))
    precision = Precision(numerics, capabilities(CudaTransport(), (9, 0)))
    precision.apply(policy)
    with FakeTensorMode():
        with DEVICE:
            model = models.resnet50(1000)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        scaler = Scaler(LossScale(), DEVICE) if policy == "fp16" else None
        x, y = torch.empty(2, 3, 224, 224, device=DEVICE), torch.empty(2, dtype=torch.long, device=DEVICE)
        with Recorder() as recorder:
            with precision.autocast():
                logits = model(x)
            loss = cross_entropy(logits.float(), y, label_smoothing=0.1)
            assert loss.dtype is torch.float32
            with torch.no_grad():
                for p in model.parameters():
                    p.grad = torch.empty_like(p)
                if scaler is not None:
                    scaler.unscale([p.grad for p in model.parameters()], None)
                optimizer.step()
        recorder.seen["parameters"] = {tuple({str(p.dtype).removeprefix("torch.") for p in model.parameters()})}
        recorder.seen["statistics"] = {
            tuple({str(b.dtype).removeprefix("torch.") for b in model.buffers() if b.is_floating_point()})
        }
        recorder.seen["logits"] = {(str(logits.dtype).removeprefix("torch."),)}
    precision.restore()
    return {kind: sorted(map(list, found)) for kind, found in recorder.seen.items()}


def cells_of(policy: str) -> dict[str, str]:
    """The row of each kind of operation, for the table of dtypes."""
    numerics = CudaNumerics((9, 0))
    precision = Precision(numerics, capabilities(CudaTransport(), (9, 0)))
    precision.apply(policy)
    with FakeTensorMode():
        with DEVICE:
            model = dtypes.Every()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        x, y = torch.empty(4, 3, 8, 8, device=DEVICE), torch.empty(4, dtype=torch.long, device=DEVICE)
        with dtypes.Dtypes() as mode:
            dtypes.watch(mode, model, optimizer)
            with precision.autocast():
                logits, _ = model(x)
                cross_entropy(logits, y)
            for p in model.parameters():
                p.grad = torch.empty_like(p)
            optimizer.step()
    precision.restore()
    return dtypes.cells(mode.seen)


if __name__ == "__main__":
    ctypes.CDLL(sys.argv[1])
    # A machine with the chip would answer these; without one autocast would refuse bfloat16 or switch itself off.
    torch.cuda.is_bf16_supported = lambda *_: True
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    policies = ("fp32", "tf32", "bf16", "fp16")
    found = {policy: {**trace(policy), "cells": cells_of(policy)} for policy in policies}
    json.dump(found, sys.stdout, indent=1)
