"""The spec of a vendor whose hardware accel recognises but whose backend this version does not hold yet.

It keeps selection honest: a machine with that hardware gets an error that says so, never a silent run on CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from accel import _probe
from accel.backend import BackendInfo, BackendParts
from accel.errors import BackendError


@dataclass(frozen=True)
class PendingSpec:
    """Detection without a backend: `find` names the hardware, `module` is the vendor's package."""

    name: str
    aliases: tuple[str, ...]
    find: Callable[[], str | None]
    module: str
    distributions: tuple[str, ...]
    absent: str  # what was looked for, when there is none

    def hardware(self) -> str | None:
        return self.find()

    def probe(self) -> BackendInfo:
        hardware = self.find()
        versions = _probe.versions("torch", *self.distributions)
        reasons = [f"this version of accel has no {self.name} backend yet"]
        reasons.append(f"{hardware} is present" if hardware else self.absent)
        if self.module != "torch" and _probe.installed(self.module):
            error = _probe.import_error(self.module)
            if error is not None:
                found = ", ".join(f"{name} {version}" for name, version in versions.items()) or "unknown versions"
                reasons.append(
                    f"importing {self.module} fails: {error} (found {found}; its version must pair with torch's. "
                    "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps it from breaking `import torch`)"
                )
        return BackendInfo(
            self.name,
            usable=False,
            reason="; ".join(reasons),
            versions=versions,
            hardware=hardware,
            aliases=self.aliases,
        )

    def load(self) -> BackendParts:
        raise BackendError(self.probe().reason)
