"""Google TPUs through torch_xla, and torch_xla on its CPU client when `PJRT_DEVICE=CPU` says so.

Detection looks for the hardware and never takes "torch_xla imported" for "there is a TPU": torch_xla runs on its CPU
client when it finds none (torch_xla 2.9).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from accel import _env, _probe
from accel.backend import BackendInfo, BackendParts
from accel.errors import ArgumentError
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
        spmd = _env.switch("ACCEL_XLA_SPMD")
        self._set_variables()
        from accel.recompute import register_replayer
        from accel_xla.device import XlaDevice
        from accel_xla.memory import XlaMemory
        from accel_xla.numerics import XlaNumerics
        from accel_xla.recompute import XlaReplayer
        from accel_xla.table import capabilities
        from accel_xla.transport import XlaTransport

        device: XlaDevice = XlaDevice()
        if spmd:
            from accel_xla.spmd import SpmdDevice

            device = SpmdDevice()
        # Starts the client: autograd counts devices at the first backward, and one on the CPU before that leaves the
        # XLA devices out for good (torch 2.9).
        device.current()
        register_replayer(device.type, XlaReplayer())
        transport = XlaTransport(device)
        return BackendParts(device, transport, XlaNumerics(), XlaMemory(device), capabilities(transport, _client()))

    def run_replicas(self, body: Callable[[int], None], count: int) -> int:
        """Ranks are PJRT's replicas, not processes of a launcher's own: see `accel.backend.BackendSpec`."""
        if _client() == "CPU":
            found = _env.set_vendor_variables({"CPU_NUM_DEVICES": str(count)})["CPU_NUM_DEVICES"]
            if found != str(count):
                raise ArgumentError(
                    f"CPU_NUM_DEVICES={found!r}, but {count} replicas were asked for; unset it, or ask for {found}"
                )
        self._set_variables()
        from accel_xla import launch

        return launch.run(body, count, _client())

    def _set_variables(self) -> None:
        devices = os.environ.get("CPU_NUM_DEVICES", "")
        replicas = int(devices) if _client() == "CPU" and devices.isdecimal() else 1
        # A replica's program waits for the others on a thread of torch_xla's pool. Left to run programs on its own, the
        # CPU client starts those that one thread hands over one after the other, and the second would never begin.
        pool = {"XLA_THREAD_POOL_SIZE": str(4 * replicas), "PJRT_CPU_ASYNC_CLIENT": "0"} if replicas > 1 else {}
        _env.set_vendor_variables({"PJRT_DEVICE": _client(), **VARIABLES, **pool})


def _client() -> str:
    """The PJRT client that runs the graphs: what the user set, else the TPU's."""
    return os.environ.get("PJRT_DEVICE", "").strip().upper() or "TPU"


def _running() -> bool:
    """Whether this process has started the client already, as one that runs replicas has."""
    loaded = sys.modules.get("torch_xla")
    return loaded is not None and bool(loaded._XLAC._xla_runtime_is_initialized())


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
    if _running():
        return None
    if client == "TPU" and (why_not := host.unusable()):
        return f"{hardware} is present, but {why_not}"
    # An unknown name in XLA_FLAGS ends the process that starts the CPU client; a TPU's must not be started here.
    error = _probe.import_error("torch_xla", then="torch_xla.device()" if client == "CPU" else "pass")
    return None if error is None else f"starting torch_xla fails: {error}"


SPEC = XlaSpec()
