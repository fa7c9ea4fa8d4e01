"""Questions about the machine that a backend's spec asks: device files, package versions, whether a package imports.

None of them imports torch or a vendor package here; an import is tried in a subprocess, so that a fault in it can
neither kill this process nor leave it half-initialised.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path("/")  # tests point it at a tree of their own


def device_files(pattern: str) -> list[str]:
    """Paths below the root that match `pattern`, such as `dev/nvidia[0-9]*`, sorted."""
    return sorted(str(path) for path in ROOT.glob(pattern))


def pci_devices(vendor: str, classes: tuple[str, ...]) -> list[str]:
    """PCI addresses of devices with this vendor id (`0x19e5`) and one of these class prefixes (`0x1200`)."""
    found = []
    for entry in ROOT.glob("sys/bus/pci/devices/*"):
        try:
            same = (entry / "vendor").read_text().strip() == vendor
            if same and (entry / "class").read_text().strip().startswith(classes):
                found.append(entry.name)
        except OSError:  # a device that vanished or that this user may not read is not one we can use
            continue
    return sorted(found)


def versions(*distributions: str) -> dict[str, str]:
    """Installed version by distribution name; absent ones are left out."""
    found = {}
    for name in distributions:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def installed(module: str) -> bool:
    """Whether top-level `module` can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


def module_folder(module: str) -> Path | None:
    """The folder of top-level package `module`, without importing it; None when there is none."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin else None


@functools.cache
def import_error(module: str, seconds: float = 300.0, then: str = "pass") -> str | None:
    """The last line that `import torch, MODULE; THEN` dies with in a subprocess; None when it succeeds.

    Autoload is off there, so the error is the package's own and not one wrapped by `import torch`.
    """
    if module in sys.modules and then == "pass":
        return None
    environ = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    code = f"import torch, {module}; {then}"
    try:
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=environ, capture_output=True, text=True, timeout=seconds, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"`{code}` did not finish in {seconds:.0f} s"
    if run.returncode == 0:
        return None
    lines = [line.strip() for line in run.stderr.splitlines() if line.strip()]
    return lines[-1] if lines else f"`{code}` ended with exit status {run.returncode}"
