"""Google TPUs through torch_tpu, the successor of torch_xla: an eager device, written against its released API.

torch_tpu 0.2.0 is a beta that knows TPUs from v4 on, as VFIO devices. Nothing of this backend has run on a TPU; what
it says of itself, and every cell of its table, carries that.
"""

from __future__ import annotations

import os

from accel import _env, _probe
from accel.backend import BackendInfo, BackendParts
from accel.errors import BackendError
from accel_xla import host

UNVERIFIED = "written against torch_tpu 0.2.0, unverified on hardware"
TORCH = ((2, 11), (2, 15))  # torch_tpu 0.2.0 has a binary for each of these minors and no other


class TpuSpec:
    """Registered as `tpu` in the entry-point group `accel.backends`."""

    name = "tpu"
    aliases: tuple[str, ...] = ()

    def hardware(self) -> str | None:
        return host.tpu_hardware()

    def probe(self) -> BackendInfo:
        hardware = host.tpu_hardware()
        why_not = _refused(hardware)
        return BackendInfo(
            self.name,
            usable=why_not is None,
            reason=why_not or f"{hardware} through torch_tpu; {UNVERIFIED}",
            versions=_probe.versions("torch", "torch_tpu", "libtpu"),
            origin="measured" if why_not is None else None,
            hardware=hardware,
            aliases=self.aliases,
        )

    def load(self) -> BackendParts:
        with _env.without_autoload():
            import torch
            from torch_tpu import _loader
        _loader.load()  # what torch's autoload calls; importing torch_tpu registers the device only under autoload
        if not hasattr(torch, self.name):
            raise BackendError(
                f"{host.tpu_hardware()} is present, but torch_tpu registered no device: it knows v4 and later, through "
                "/dev/vfio; use torch_xla (`pip install accel-torch[xla]`, ACCEL_BACKEND=xla) for others"
            )
        from accel_tpu.device import TpuDevice
        from accel_tpu.memory import TpuMemory
        from accel_tpu.numerics import TpuNumerics
        from accel_tpu.table import capabilities
        from accel_tpu.transport import TpuTransport

        device, transport = TpuDevice(), TpuTransport()
        try:
            device.start()
        except RuntimeError as error:
            raise BackendError(f"{host.tpu_hardware()} is present, but does not start: {error}") from error
        return BackendParts(device, transport, TpuNumerics(), TpuMemory(device), capabilities(transport))


def _refused(hardware: str | None) -> str | None:
    """Why torch_tpu cannot be used; None when it can."""
    if hardware is None:
        return host.ABSENT
    if not _probe.installed("torch_tpu"):
        return f"{hardware} is present, but torch_tpu is not installed; run `pip install torch_tpu` (Python 3.11 on)"
    if _probe.installed("torch_xla"):
        return host.BOTH
    versions = _probe.versions("torch", "torch_tpu")
    minor = tuple(int(part) for part in versions["torch"].split("+")[0].split(".")[:2])
    if not TORCH[0] <= minor <= TORCH[1]:
        lowest, highest = (".".join(map(str, bound)) for bound in TORCH)
        pair = ", ".join(f"{name} {version}" for name, version in versions.items())
        return f"{pair} do not pair: torch_tpu works with torch {lowest} to {highest}; install one of them"
    if not (_probe.installed("libtpu") or os.environ.get("TPU_LIBRARY_PATH")):
        return f"{hardware} is present, but its driver libtpu is not installed; run `pip install libtpu`"
    if why_not := host.unusable():
        return f"{hardware} is present, but {why_not}"
    error = _probe.import_error("torch_tpu")
    return None if error is None else f"importing torch_tpu fails: {error}"


SPEC = TpuSpec()
