"""`CUDA_VISIBLE_DEVICES`: which of the machine's GPUs this process sees, checked against what the driver lists.

CUDA ends the list silently at its first bad entry, and takes a repeated one for an empty list; a typing error then
looks like a machine with fewer GPUs (T31). Here each is an error. Forms: indices from 0, UUIDs "GPU-..." or the start
of one that only one GPU has, MIG UUIDs "MIG-..." (CUDA C++ Programming Guide, "CUDA Environment Variables").
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from accel.errors import BackendError
from accel_cuda.nvml import Gpu

VARIABLE = "CUDA_VISIBLE_DEVICES"
# MIG User Guide, "Device Enumeration": with CUDA 11/R450 and CUDA 12/R525 only one instance is enumerated.
ONE_MIG = "CUDA gives a process one MIG device; start one process for each"


def visible(gpus: Sequence[Gpu], environ: Mapping[str, str] = os.environ) -> list[Gpu]:
    """The GPUs that this process sees; a MIG device stands as the GPU that it is a part of.

    Raises `BackendError`, naming variable, value and entry, for a list that hides everything or that CUDA would cut.
    """
    value = environ.get(VARIABLE)
    if value is None:
        return _by_default(gpus)
    entries = [entry.strip() for entry in value.split(",")]
    if not value.strip() or entries[0] == "-1":
        raise BackendError(f"{VARIABLE}={value!r} hides all {len(gpus)} GPU(s) from this process; unset it to use them")
    if len({entry.partition("-")[0] if "-" in entry else "index" for entry in entries}) > 1:
        raise _bad(value, value, "CUDA takes only one form in one list: indices, GPU UUIDs or MIG UUIDs")
    found = []
    for place, entry in enumerate(entries):
        if entry in entries[:place]:
            raise _bad(value, entry, "it stands there twice, which CUDA takes for an empty list")
        found.append(_one(value, entry, gpus))
    if entries[0].startswith("MIG-") and len(entries) > 1:
        raise _bad(value, entries[1], ONE_MIG)
    return found


def _by_default(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Without the variable CUDA takes all GPUs; of GPUs cut by MIG only one device, where no whole GPU is left."""
    whole = [gpu for gpu in gpus if gpu.mig is None]
    cut = [gpu for gpu in gpus if gpu.mig]
    if not whole and not cut:
        raise BackendError(
            f"MIG is on for all {len(gpus)} GPU(s) and none has a MIG device; make one (nvidia-smi mig -cgi) or turn "
            "MIG off (nvidia-smi -mig 0)"
        )
    return whole or cut[:1]


def _one(value: str, entry: str, gpus: Sequence[Gpu]) -> Gpu:
    if entry.isdecimal():
        if int(entry) >= len(gpus):
            raise _bad(value, entry, f"the driver lists {len(gpus)} GPU(s); expected an index up to {len(gpus) - 1}")
        gpu = gpus[int(entry)]
        if gpu.mig == ():
            raise _bad(value, entry, f"MIG is on for GPU {entry} and it has no MIG device; make one, or turn MIG off")
        return gpu
    if entry.startswith("MIG-GPU-"):  # MIG-GPU-<uuid>/<instance>/<instance>, drivers before R470
        parts = entry.removeprefix("MIG-").split("/")
        owners = [gpu for gpu in gpus if gpu.mig and gpu.uuid == parts[0]] if len(parts) == 3 else []
        if not owners:
            raise _bad(value, entry, f"no GPU has such a MIG device; the driver lists {_listed(gpus, mig=True)}")
        return owners[0]
    if entry.startswith("MIG-"):
        owners = [gpu for gpu in gpus if entry in (gpu.mig or ())]
        if not owners:
            raise _bad(value, entry, f"no such MIG device; the driver lists {_listed(gpus, mig=True)}")
        return owners[0]
    if entry.startswith("GPU-"):
        owners = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        if len(owners) != 1:
            why = f"{len(owners)} GPUs have a UUID that starts so" if owners else "no GPU has such a UUID"
            raise _bad(value, entry, f"{why}; the driver lists {_listed(gpus, mig=False)}")
        return owners[0]
    raise _bad(value, entry, "expected an index from 0, a UUID as in GPU-..., or a MIG UUID as in MIG-...")


def _listed(gpus: Sequence[Gpu], mig: bool) -> str:
    names = [uuid for gpu in gpus for uuid in gpu.mig or ()] if mig else [gpu.uuid for gpu in gpus]
    return ", ".join(names) or "none"


def _bad(value: str, entry: str, why: str) -> BackendError:
    whole = "" if entry == value else f" (entry {entry!r})"
    return BackendError(f"{VARIABLE}={value!r} cannot be used{whole}: {why}. `nvidia-smi -L` lists what there is")
