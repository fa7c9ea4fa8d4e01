"""The TPU of this host as detection sees it: its chips, the list of chips that the user wants, and libtpu's lock file.

Read from device files, sysfs, /proc/locks and the environment; nothing here loads libtpu, and nothing opens the lock
file: closing it again would release the lock that this process itself may hold (lockf(3)). Both TPU backends ask here.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping

from accel import _probe

GOOGLE = "0x1ae0"  # PCI vendor id of Google
ACCELERATOR_CLASSES = ("0x0880", "0x1200")  # system peripheral and processing accelerator, as TPU hosts list them
ABSENT = "no TPU is present (no /dev/accel* device file, no Google accelerator on the PCI bus)"
BOTH = (
    "torch_tpu and torch_xla are both installed, but need different versions of torch and of libtpu; uninstall one: "
    "`pip uninstall torch_xla` for the successor torch_tpu, `pip uninstall torch_tpu` for torch_xla"
)
# libtpu reads either; torch_xla and torch_tpu document the first (libtpu 0.0.52).
CHIP_LISTS = ("TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES")
LOCK_FILE = "tmp/libtpu_lockfile"
# With one of these libtpu lets several processes load it and takes no lock: each then has chips of its own
# (TensorFlow, core/tpu/tpu_initializer_util.cc, TryAcquireTpuLock).
SHARED = ("TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS")
WHOLE_HOST = "2,2,1"  # these bounds are all chips of a host, so the lock counts


def chips() -> list[str]:
    """The chips of this host, one entry each: device files (v2 to v4: /dev/accelN) or PCI addresses (v5e and later).

    Where the PCI bus lists more than a container was given, those with a VFIO device file count.
    """
    found = _probe.device_files("dev/accel[0-9]*")
    if found:
        return found
    on_bus = _probe.pci_devices(GOOGLE, ACCELERATOR_CLASSES)
    return [address for address in on_bus if _has_vfio_file(address)] or on_bus


def tpu_hardware() -> str | None:
    """The TPU in this machine, in words; None when there is none."""
    found = chips()
    return f"{len(found)} Google TPU chip(s)" if found else None


def unusable(environ: Mapping[str, str] = os.environ) -> str | None:
    """Why this host's TPU cannot be used as things are: a chip list that does not fit, a lock; None when it can."""
    return wrong_chip_list(len(chips()), environ) or locked(environ)


def wrong_chip_list(count: int, environ: Mapping[str, str] = os.environ) -> str | None:
    """What is wrong with TPU_VISIBLE_CHIPS or TPU_VISIBLE_DEVICES on a host of `count` chips; None when nothing is."""
    lists = {name: environ[name] for name in CHIP_LISTS if name in environ}
    for name, text in lists.items():
        expected = f"expected chip numbers from 0 to {count - 1}, separated by commas, or {name} unset for all"
        ids = [part.strip() for part in text.split(",")]
        if ids == [""]:
            return f"{name}={text!r} names no chip; {expected}"
        wrong = [part for part in ids if not part.isdecimal()]
        if wrong:
            return f"{name}={text!r}: {wrong[0]!r} is not a chip number; {expected}"
        numbers = [int(part) for part in ids]
        outside = [number for number in numbers if number >= count]
        if outside:
            return f"{name}={text!r}: this host has {count} chip(s), so there is no chip {outside[0]}; {expected}"
        if len(set(numbers)) < len(numbers):
            twice = next(number for number in numbers if numbers.count(number) > 1)
            return f"{name}={text!r} names chip {twice} twice; {expected}"
    if len(set(lists.values())) > 1:
        both = " and ".join(f"{name}={text!r}" for name, text in lists.items())
        return f"{both} disagree; unset one of the two"
    return None


def locked(environ: Mapping[str, str] = os.environ) -> str | None:
    """Who keeps libtpu from loading here through its lock file; None when nobody does, or when it takes no lock."""
    bounds = next((environ[name] for name in SHARED if environ.get(name)), "")
    several = environ.get("ALLOW_MULTIPLE_LIBTPU_LOAD", "").lower() not in ("", "0", "false")
    if several or bounds not in ("", WHOLE_HOST):
        return None
    path = _probe.ROOT / LOCK_FILE
    try:
        status = path.stat()
    except OSError:  # there is none, or none that this user could see
        return None
    pid = _lock_holder(status)
    if pid == os.getpid():
        return None
    if pid is not None:
        who = f"process {pid} ({_command(pid)})" if pid > 0 else "a process outside of this container"
        return (
            f"it is in use by {who}, which holds {path}: end that process, wait for it, or give each process chips of "
            f"its own with TPU_VISIBLE_CHIPS and {SHARED[0]}"
        )
    if not os.access(path, os.W_OK):  # libtpu opens it for writing, and takes a failure for a lock
        return (
            f"{path} was left behind by user {_user(status.st_uid)} and no process holds it, but this user may not "
            "open it, so libtpu would not load; have its owner or root remove it (accel never does)"
        )
    return None


def _has_vfio_file(address: str) -> bool:
    group = _probe.ROOT / "sys/bus/pci/devices" / address / "iommu_group"
    return group.is_symlink() and (_probe.ROOT / "dev/vfio" / group.readlink().name).exists()


def _lock_holder(status: os.stat_result) -> int | None:
    """The process that holds a lock on the file, as /proc/locks lists them (proc(5)); None when nobody does.

    Of a process in another PID namespace the kernel tells 0 or a negative number.
    """
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        lines = (_probe.ROOT / "proc/locks").read_text().splitlines()
    except OSError:  # not Linux, or hidden: libtpu itself will say
        return None
    for line in lines:  # "1: POSIX  ADVISORY  WRITE 4711 fe:00:2146368 0 EOF"
        words = line.split()
        if "->" not in words and file in words:  # "->" marks one that waits for the lock
            return int(words[words.index(file) - 1])
    return None


def _command(pid: int) -> str:
    try:
        return (_probe.ROOT / "proc" / str(pid) / "comm").read_text().strip()
    except OSError:  # it ended meanwhile, or is hidden from this user
        return "its name is hidden"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:  # the user exists on the host, not in this container
        return str(uid)
