"""CPU (gloo): the reference backend, and the first user of the eager base."""

from __future__ import annotations

from accel import _probe
from accel.backend import BackendInfo, BackendParts


class CpuSpec:
    """Registered as `cpu` in the entry-point group `accel.backends`."""

    name = "cpu"
    aliases: tuple[str, ...] = ()

    def hardware(self) -> str | None:
        return None  # a CPU is no accelerator: it is used when none is present, or on purpose

    def probe(self) -> BackendInfo:
        versions = _probe.versions("torch")
        if not _probe.installed("torch"):
            return BackendInfo(self.name, usable=False, reason="torch is not installed; run `pip install torch`")
        reason = "always present; collectives by gloo"
        return BackendInfo(self.name, usable=True, reason=reason, versions=versions, origin="measured")

    def load(self) -> BackendParts:
        from accel_cpu.device import CpuDevice
        from accel_cpu.memory import CpuMemory
        from accel_cpu.numerics import CpuNumerics
        from accel_cpu.table import capabilities
        from accel_cpu.transport import CpuTransport

        transport = CpuTransport()
        return BackendParts(CpuDevice(), transport, CpuNumerics(), CpuMemory(), capabilities(transport))


SPEC = CpuSpec()
