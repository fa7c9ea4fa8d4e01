"""Transport of NVIDIA GPUs: NCCL, and what it carries and reduces as it is.

A process group is bound to this rank's GPU when it is made, so that nothing has to guess a device from a rank (T35).
Waiting for an operation orders it before what follows on the current stream and returns at once (T28);
`Work.wait(host=True)` waits for the GPU too, with a time limit. A kernel of NCCL that hangs is ended by torch's
watchdog, which ends the process: its limit is the session's and a few seconds more, so that accel's error, which
names ranks, comes first (T38).
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from accel._c10d import C10dTransport
from accel.errors import BackendError

TRACED = 2000  # operations of NCCL that torch records
INTERFACES = "NCCL_SOCKET_IFNAME"
NO_INTERFACE = ("no socket interface found", "no interface found", "No interface found")  # NCCL 2.18 to 2.27
DUPLICATE = "Duplicate GPU detected"

# ProcessGroupNCCL knows no int16, uint16, uint32, uint64 and complex (torch 2.9); bool moves as bytes.
_INTEGERS = frozenset({torch.uint8, torch.int8, torch.int32, torch.int64})
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})


class CudaTransport(C10dTransport):
    """NCCL between processes, over NVLink, PCIe, InfiniBand or TCP."""

    name = "nccl"
    c10d_backend = "nccl"
    blocks = False
    grace = 10.0
    native_dtypes = _INTEGERS | _FLOATS | {torch.bool}
    native_reductions: Mapping[str, frozenset[torch.dtype]] = {
        "sum": _INTEGERS | _FLOATS,
        "product": _INTEGERS | _FLOATS,
        # NCCL does not promise that a NaN survives floating min and max.
        "min": _INTEGERS,
        "max": _INTEGERS,
        # NCCL multiplies by 1/n before it adds up: right for wide floats; small fp16 values would be lost (T05).
        "mean": frozenset({torch.float32, torch.float64}),
    }

    def flight_record(self) -> Any:
        """What torch's recorder of NCCL operations holds; None where this torch has none."""
        dump = getattr(torch._C._distributed_c10d, "_dump_nccl_trace_json", None)  # torch 2.6 to 2.13, CUDA builds
        if dump is None:
            return None
        record: Any = json.loads(dump(includeCollectives=True, onlyActive=False))
        return {"version": record.get("version"), "entries": record.get("entries", [])[-TRACED:]}

    def init(self, store: Any, rank: int, world_size: int, timeout: float, device: torch.device) -> None:
        check_interfaces(os.environ.get(INTERFACES), [name for _, name in socket.if_nameindex()])
        try:
            super().init(store, rank, world_size, timeout, device)
        except RuntimeError as error:
            raise explained(error, rank, device) from error


def check_interfaces(value: str | None, present: Sequence[str]) -> None:
    """Raise `BackendError` when `NCCL_SOCKET_IFNAME` selects none of the interfaces of this host.

    Its forms: prefixes "eth,ib", exact names "=eth0", all but some "^docker" or "^=lo" (NCCL documentation).
    """
    if value is None or not value.strip():
        return
    body, exclude = value.strip(), value.strip().startswith("^")
    body = body.removeprefix("^")
    exact = body.startswith("=")
    names = [name.partition(":")[0] for name in body.removeprefix("=").split(",") if name]
    chosen = [
        name for name in present if any(name == one if exact else name.startswith(one) for one in names) is not exclude
    ]
    if not chosen:
        raise BackendError(
            f"{INTERFACES}={value!r} selects none of this host's network interfaces, which are {', '.join(present)}: "
            "name one of them that reaches the other hosts, or unset the variable and let NCCL choose"
        )


def explained(error: RuntimeError, rank: int, device: torch.device) -> Exception:
    """An error of ours, with the remedy, for what NCCL says in its own words when it connects; `error` for others."""
    text = str(error)
    if any(words in text for words in NO_INTERFACE):
        return BackendError(
            f"NCCL finds no network interface on rank {rank}: set {INTERFACES} to one that reaches the other ranks "
            f"(ip -br addr lists them); on a single host {INTERFACES}=lo works. NCCL said: {text.splitlines()[-1]}"
        )
    if DUPLICATE in text:
        return BackendError(
            f"NCCL refuses rank {rank}, which shares {device} with another rank: give every rank a GPU of its own. "
            f"NCCL said: {text.splitlines()[-1]}"
        )
    return error
