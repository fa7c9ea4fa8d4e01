"""Versions of everything below torch on an Ascend machine - driver, firmware, CANN - and what goes with what.

Read from the files that the installers leave, below a root that tests point elsewhere; nothing is imported. What goes
together: torch_npu requires the torch of its own minor version (its wheel's `Requires-Dist`); each torch_npu is
released for one CANN and runs on later ones (COMPATIBILITY.md of the torch_npu repository, read at 2.12); driver and
firmware are released as a pair, whose `package_version` is the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from accel import _probe

DRIVER = "usr/local/Ascend/driver/version.info"
FIRMWARE = "usr/local/Ascend/firmware/version.info"
CANN_HOMES = ("usr/local/Ascend/cann", "usr/local/Ascend/ascend-toolkit/latest", "usr/local/Ascend/nnae/latest")
CANN_FILES = ("*-linux/ascend_*_install.info", "ascend_*_install.info", "version.cfg")
# The CANN that a torch_npu minor version was first released for; of others only "older than the oldest" can be said.
CANN_FOR = {
    "2.6": "8.2.RC1",
    "2.7": "8.3.RC1",
    "2.8": "8.3.RC1",
    "2.9": "8.5.0",
    "2.10": "9.1.0",
    "2.11": "9.1.0",
    "2.12": "9.1.0",
}


def installed(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Version by component: driver, firmware, CANN, torch_npu, torch; absent ones are left out."""
    found = {
        "driver": _field(_probe.ROOT / DRIVER, "package_version", "Version"),
        "firmware": _field(_probe.ROOT / FIRMWARE, "package_version", "Version"),
        "CANN": _cann(environ),
    }
    return {**{name: value for name, value in found.items() if value}, **_probe.versions("torch_npu", "torch")}


def mismatches(versions: Mapping[str, str]) -> list[str]:
    """One line for each pair that does not go together, with both versions and what to install."""
    lines = []
    torch, torch_npu = versions.get("torch"), versions.get("torch_npu")
    if torch and torch_npu and _minor(torch) != _minor(torch_npu):
        lines.append(
            f"torch_npu {torch_npu} needs torch {_minor(torch_npu)}, and torch {torch} is installed: run "
            f'`pip install "torch_npu=={_minor(torch)}.*"`, or install the CPU build of torch {_minor(torch_npu)}'
        )
    cann = versions.get("CANN")
    wanted = CANN_FOR.get(_minor(torch_npu)) if torch_npu else None
    if cann and wanted and _order(cann) < _order(wanted):
        lines.append(
            f"torch_npu {torch_npu} is released for CANN {wanted}, and CANN {cann} is installed: install CANN {wanted} "
            "or later, or a torch_npu of that CANN's time"
        )
    driver, firmware = versions.get("driver"), versions.get("firmware")
    if driver and firmware and _order(driver)[:2] != _order(firmware)[:2]:
        older = "driver" if _order(driver) < _order(firmware) else "firmware"
        lines.append(
            f"driver {driver} and firmware {firmware} are not of one release: install the {older} of "
            f"{firmware if older == 'driver' else driver}, and restart the machine"
        )
    return lines


def cuda_build(torch: str | None) -> bool:
    """Whether this torch carries CUDA, which aborts the process when torch_npu 2.14 loads and is refused by others.

    Told by torch's own version file, without an import: `cuda: Optional[str] = "12.8"` or None.
    """
    home = _probe.module_folder("torch")
    if home is None:
        return False
    try:
        text = (home / "version.py").read_text()
    except OSError:  # a torch that is laid out in another way: the import will show
        return "+cu" in (torch or "")
    return re.search(r"^cuda\b[^=\n]*=\s*['\"]", text, re.MULTILINE) is not None


def _cann(environ: Mapping[str, str]) -> str | None:
    homes = [Path(environ[name]) for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if environ.get(name)]
    for home in [*homes, *(_probe.ROOT / home for home in CANN_HOMES)]:
        for pattern in CANN_FILES:
            for file in sorted(home.glob(pattern)):
                version = _field(file, "version", "Version", "runtime_running_version")
                if version:
                    return version
    return None


def _field(file: Path, *names: str) -> str | None:
    """The value of the first of `names` in a file of `name=value` lines; `[9.1.0:CANN-9.1.0]` counts as 9.1.0."""
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError:  # not installed, or not in the usual place
        return None
    values = {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}
    for name in names:
        if values.get(name):
            return values[name].strip("[]").partition(":")[0]
    return None


def _minor(version: str) -> str:
    return ".".join(version.split("+", maxsplit=1)[0].split(".")[:2])


def _order(version: str) -> tuple[int, ...]:
    """8.3.RC1 comes before 8.3.0: a release candidate's number counts from -1000."""
    parts = re.findall(r"(rc)?(\d+)", version.lower())
    return tuple(int(number) - (1000 if candidate else 0) for candidate, number in parts)
