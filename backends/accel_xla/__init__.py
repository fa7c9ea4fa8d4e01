"""Google TPUs through torch_xla, and torch_xla on its CPU client when `PJRT_DEVICE=CPU` says so.

Detection looks for the hardware and never takes "torch_xla imported" for "there is a TPU": torch_xla runs on its CPU
client when it finds none (torch_xla 2.9).
"""

from __future__ import annotations

import os

from accel import _env, _probe
from accel.backend import BackendInfo, BackendParts
from accel_xla import host

# Without it 0 and 1 are constants of the graph, so that a learning rate which passes through them compiles a new one.
VARIABLES = {"XLA_NO_SPECIAL_SCALARS": "1"}


class XlaSpec:
    """Registered as `xla` in the entry-point group `accel.backends`."""

    name = "xla"
    aliases: tuple[str, ...] = ("tpu",)

    def hardware(self) -> str | None:
        return host.tpu_hardware()

    def probe(self) -> BackendInfo:
        hardware, client = host.tpu_hardware(), _client()
        why_not = _refused(client, hardware)
        reason = f"{hardware} through PJRT"
        if client == "CPU":
            reason = "XLA on CPU, as PJRT_DEVICE=CPU asks: it shows that the software works, not how a TPU does"
        return BackendInfo(
            self.name,
            usable=why_not is None,
            reason=why_not or reason,
            versions=_probe.versions("torch", "torch_xla", "libtpu"),
            origin=None if why_not else "emulated" if client == "CPU" else "measured",
            hardware=hardware,
            aliases=self.aliases,
        )

    def load(self) -> BackendParts:
        # torch_xla left alone takes its CPU client where it finds no libtpu: the choice made here is written down.
        _env.set_vendor_variables({"PJRT_DEVICE": _client(), **VARIABLES})
        from accel_xla.device import XlaDevice
        from accel_xla.memory import XlaMemory
        from accel_xla.numerics import XlaNumerics
        from accel_xla.table import capabilities
        from accel_xla.transport import XlaTransport

        device, transport = XlaDevice(), XlaTransport()
        return BackendParts(device, transport, XlaNumerics(), XlaMemory(device), capabilities(transport, _client()))


def _client() -> str:
    """The PJRT client that runs the graphs: what the user set, else the TPU's."""
    return os.environ.get("PJRT_DEVICE", "").strip().upper() or "TPU"


def _refused(client: str, hardware: str | None) -> str | None:
    """Why torch_xla cannot be used with `client`; None when it can."""
    if client not in ("CPU", "TPU"):
        return f"PJRT_DEVICE={os.environ['PJRT_DEVICE']!r}: expected TPU, or CPU to run XLA on the CPU on purpose"
    if client == "TPU" and hardware is None:
        return f"{host.ABSENT}; PJRT_DEVICE=CPU runs XLA on the CPU on purpose"
    if not _probe.installed("torch_xla"):
        found = f"{hardware} is present, but " if hardware else ""
        return f"{found}torch_xla is not installed; run `pip install accel-torch[xla]`"
    if _probe.installed("torch_tpu"):
        return host.BOTH
    if client == "TPU" and not (_probe.installed("libtpu") or os.environ.get("TPU_LIBRARY_PATH")):
        return f"{hardware} is present, but its driver libtpu is not installed; run `pip install torch_xla[tpu]`"
    versions = _probe.versions("torch", "torch_xla")
    if len({version.split("+")[0].rpartition(".")[0] for version in versions.values()}) > 1:
        pair = ", ".join(f"{name} {version}" for name, version in versions.items())
        return f"{pair} do not pair: torch_xla works only with the torch of the same minor version; install one of them"
    if client == "TPU" and (why_not := host.unusable()):
        return f"{hardware} is present, but {why_not}"
    # An unknown name in XLA_FLAGS ends the process that starts the CPU client; a TPU's must not be started here.
    error = _probe.import_error("torch_xla", then="torch_xla.device()" if client == "CPU" else "pass")
    return None if error is None else f"starting torch_xla fails: {error}"


SPEC = XlaSpec()
