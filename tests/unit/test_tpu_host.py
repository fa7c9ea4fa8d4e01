"""The TPU of a host without touching it: chips, chip lists, libtpu's lock file. The lock is a real one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import accel
from accel import _probe
from accel_xla import host


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A tree in place of /, whose list of locks is this machine's."""
    tree = tmp_path / "root"
    (tree / "proc").mkdir(parents=True)
    (tree / "proc" / "locks").symlink_to("/proc/locks")
    (tree / "tmp").mkdir()
    (tree / "dev").mkdir()
    monkeypatch.setattr(_probe, "ROOT", tree)
    for name in (*host.CHIP_LISTS, *host.SHARED, "ALLOW_MULTIPLE_LIBTPU_LOAD", "PJRT_DEVICE", "TPU_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    _probe.import_error.cache_clear()
    return tree


def chip_on_the_bus(root, address, group, visible=True):
    entry = root / "sys/bus/pci/devices" / address
    entry.mkdir(parents=True)
    (entry / "vendor").write_text("0x1ae0\n")
    (entry / "class").write_text("0x120000\n")
    groups = root / "sys/kernel/iommu_groups" / group
    groups.mkdir(parents=True)
    (entry / "iommu_group").symlink_to(groups)
    if visible:
        (root / "dev/vfio").mkdir(exist_ok=True)
        (root / "dev/vfio" / group).touch()


def test_chips_that_a_container_was_not_given_do_not_count(root):
    for index in range(4):
        chip_on_the_bus(root, f"0000:00:0{index}.0", str(index), visible=index == 2)
    assert host.chips() == ["0000:00:02.0"]
    assert host.tpu_hardware() == "1 Google TPU chip(s)"


@pytest.mark.parametrize("name", host.CHIP_LISTS)
@pytest.mark.parametrize("text", ["0", "1,2", " 3 , 0 "])
def test_chip_list_that_fits_is_accepted(name, text):
    assert host.wrong_chip_list(4, {name: text}) is None


@pytest.mark.parametrize("name", host.CHIP_LISTS)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "='' names no chip"),
        ("9", "this host has 4 chip(s), so there is no chip 9"),
        ("1,2,3,4", "there is no chip 4"),  # counted from 1
        ("1,1", "names chip 1 twice"),
        ("0,a", "'a' is not a chip number"),
        ("-1", "'-1' is not a chip number"),
        ("0,,1", "'' is not a chip number"),
    ],
)
def test_chip_list_that_does_not_fit_is_named(name, text, said):  # T69
    found = host.wrong_chip_list(4, {name: text})
    assert found is not None
    assert found.startswith(f"{name}={text!r}")
    assert said in found
    assert "expected chip numbers from 0 to 3" in found


def test_two_chip_lists_that_disagree_are_named():
    assert host.wrong_chip_list(4, dict(zip(host.CHIP_LISTS, ("0", "0"), strict=True))) is None
    found = host.wrong_chip_list(4, dict(zip(host.CHIP_LISTS, ("0", "1"), strict=True)))
    assert found == "TPU_VISIBLE_CHIPS='0' and TPU_VISIBLE_DEVICES='1' disagree; unset one of the two"


HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def held(root):
    """A process that holds the lock as libtpu does (lockf)."""
    path = root / host.LOCK_FILE
    path.touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_held_lock_names_file_and_process_and_stays(root, held):  # T69
    path = root / host.LOCK_FILE
    found = host.locked({})
    assert found is not None
    assert f"in use by process {held.pid}" in found
    assert str(path) in found
    assert host.locked({"TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1"}) is None  # libtpu takes no lock then
    assert host.locked({"TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1"}) == found
    assert host.locked({"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}) is None
    held.kill()
    held.wait()
    assert path.exists()
    assert host.locked({}) is None  # stale, and libtpu can lock it


def test_absent_lock_is_no_hindrance(root):
    assert host.locked({}) is None


def test_stale_lock_of_another_user_names_file_and_user(root, monkeypatch):  # T69
    path = root / host.LOCK_FILE
    path.touch()
    monkeypatch.setattr(os, "access", lambda *arguments: False)  # root, who runs CI, may write everywhere
    found = host.locked({})
    assert found is not None
    assert f"{path} was left behind by user" in found
    assert "accel never does" in found
    assert path.exists()


def test_lock_of_another_container_is_told_apart(root):
    path = root / host.LOCK_FILE
    path.touch()
    status = path.stat()
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    line = f"1: POSIX  ADVISORY  WRITE 0 {device}:{status.st_ino} 0 EOF"
    (root / "proc/locks").unlink()
    (root / "proc/locks").write_text(line + "\n")
    found = host.locked({})
    assert found is not None
    assert "a process outside of this container" in found


@pytest.mark.parametrize("name", ["xla", "tpu"])
@pytest.mark.parametrize("fault", ["chips", "lock"])
def test_both_backends_say_so(root, held, package, monkeypatch, name, fault):  # T69
    (root / "dev/accel0").touch()
    package({"xla": "torch_xla", "tpu": "torch_tpu"}[name])
    package("libtpu")
    if fault == "chips":
        monkeypatch.setenv("TPU_VISIBLE_CHIPS", "9")
        said = "1 Google TPU chip(s) is present, but TPU_VISIBLE_CHIPS='9'"
    else:
        said = f"1 Google TPU chip(s) is present, but it is in use by process {held.pid}"
    (info,) = [one for one in accel.backends() if one.name == name]
    assert not info.usable
    assert info.reason.startswith(said)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a stand-in package that must not be imported, of torch's own version."""
    import importlib.metadata

    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def add(name: str, version: str = importlib.metadata.version("torch").partition("+")[0], source: str = "") -> None:
        (site / f"{name}.py").write_text(source or "raise SystemExit('imported')")
        meta = site / f"{name}-{version}.dist-info"
        meta.mkdir()
        (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    return add


def test_torch_tpu_and_torch_xla_together_say_what_to_do(root, package):
    (root / "dev/accel0").touch()
    package("torch_xla")
    package("torch_tpu")
    with pytest.raises(accel.errors.BackendError, match="pip uninstall torch_xla.*pip uninstall torch_tpu"):
        accel.get_backend("tpu")


def test_tpu_means_the_one_that_is_installed(root, package, monkeypatch):
    from accel import registry

    monkeypatch.delenv("ACCEL_BACKEND", raising=False)  # the lane's own choice
    (root / "dev/accel0").touch()
    package("torch_tpu", "0.2.0", "pass")
    package("libtpu")
    spec, info = registry.select("tpu")
    assert spec.name == registry.select()[0].name == "tpu"
    assert info.origin == "measured"
    assert "unverified on hardware" in info.reason


def test_torch_that_torch_tpu_has_no_binary_for_is_named(root, package):
    (root / "dev/accel0").touch()
    package("torch_tpu")
    package("torch", "2.9.0", "pass")
    (info,) = [one for one in accel.backends() if one.name == "tpu"]
    assert "torch 2.9.0" in info.reason
    assert "torch_tpu works with torch 2.11 to 2.15" in info.reason


def test_cpu_never_reads_the_lock(root, held):  # T69
    code = (
        "import sys; seen = []\n"
        "sys.addaudithook(lambda event, args: seen.append(str(args)) if event.startswith(('open', 'os.')) else None)\n"
        "import accel\n"
        "with accel.init(backend='cpu', seed=None): pass\n"
        "print([one for one in seen if 'libtpu' in one or 'proc/locks' in one])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout.strip() == "[]"
