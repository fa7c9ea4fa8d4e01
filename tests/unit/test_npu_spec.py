"""What the NPU backend says of a machine before torch_npu is imported: visible devices, versions, refusals."""

from __future__ import annotations

import os
import textwrap

import pytest

import accel
from accel import _env, _probe
from accel.errors import ArgumentError
from accel_npu import SPEC, _errors, _versions, _visible


@pytest.fixture(autouse=True)
def machine(monkeypatch, tmp_path):
    """A root of its own, without NPUs, and without the variables that choose them."""
    for name in ("ASCEND_RT_VISIBLE_DEVICES", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ACCEL_BACKEND"):
        monkeypatch.delenv(name, raising=False)
    for name in [name for name in os.environ if name.startswith("ACCEL_EMULATE_NPU_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(_probe, "ROOT", tmp_path)
    _probe.import_error.cache_clear()
    return tmp_path


def write(root, path, text):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))


@pytest.fixture
def package(machine, monkeypatch):
    """Put a torch_npu of a given version and content on sys.path."""
    site = machine / "site"
    monkeypatch.syspath_prepend(str(site))

    def make(version="2.13.0", code=""):
        write(site, "torch_npu/__init__.py", code)
        write(
            site,
            f"torch_npu-{version}.dist-info/METADATA",
            f"Metadata-Version: 2.1\nName: torch_npu\nVersion: {version}\n",
        )

    return make


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1,0", "ascending ids, '0,1' here"),
        ("0,0", "each id once"),
        ("0, 1", "no space"),
        ("0,1 ", "no space"),
        ("a,b", "decimal ids"),
        ("0,", "empty place"),
        ("-1", "decimal ids"),
        ("²", "decimal ids"),
        ("0,8", r"ids of NPUs that this machine has \(0, 1, 3, 4\)"),
    ],
)
def test_bad_visible_devices_name_the_value_and_what_is_expected(text, expected):  # T31
    with pytest.raises(ArgumentError, match=expected) as caught:
        _visible.visible([0, 1, 3, 4], {"ASCEND_RT_VISIBLE_DEVICES": text})
    assert f"ASCEND_RT_VISIBLE_DEVICES={text!r}" in str(caught.value)


def test_visible_devices_are_physical_ids_by_logical_index():  # T31
    assert _visible.visible([4, 5, 6, 7], {"ASCEND_RT_VISIBLE_DEVICES": "4,5,6,7"})[1] == 5
    assert _visible.visible(None, {"ASCEND_RT_VISIBLE_DEVICES": "7,9"}) == [7, 9]
    assert _visible.visible([0], {}) is None
    assert _visible.visible([0], {"ASCEND_RT_VISIBLE_DEVICES": ""}) == []


def test_variables_that_choose_nothing_are_reported():  # T31
    (line,) = _visible.misspelt({"ASCEBD_RT_VISIBLE_DEVICES": "0", "ASCEND_RT_VISIBLE_DEVICES": "1"})
    assert "ASCEBD_RT_VISIBLE_DEVICES='0'" in line
    assert "did you mean ASCEND_RT_VISIBLE_DEVICES?" in line
    (line,) = _visible.misspelt({"CUDA_VISIBLE_DEVICES": "0", "ASCEND_VISIBLE_DEVICES": "0"})
    assert "CUDA_VISIBLE_DEVICES='0' does not choose NPUs" in line


@pytest.mark.parametrize(("text", "said"), [("1,0", "ascending"), ("", "shows no NPU"), ("3", "this machine has")])
def test_backend_refuses_bad_visible_devices_before_torch_npu_loads(package, machine, monkeypatch, text, said):
    package(code="raise SystemExit('imported')")
    write(machine, "dev/davinci0", "")
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", text)
    info = SPEC.probe()
    assert not info.usable
    assert said in info.reason
    with pytest.raises(accel.errors.BackendError, match="ASCEND_RT_VISIBLE_DEVICES="):
        accel.get_backend()


def ascend(machine, driver="24.1.0", firmware="24.1.0", cann="8.5.0"):
    write(machine, "usr/local/Ascend/driver/version.info", f"Version={driver}\npackage_version={driver}\n")
    write(machine, "usr/local/Ascend/firmware/version.info", f"Version=7.5.0.1.129\npackage_version={firmware}\n")
    write(
        machine,
        "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info",
        f"package_name=Ascend-cann-toolkit\nversion={cann}\ninnerversion=V100R001\n",
    )


def test_versions_of_driver_firmware_and_cann_are_read(machine, package):
    ascend(machine)
    package("2.9.0")
    found = SPEC.probe().versions
    assert (found["driver"], found["firmware"], found["CANN"], found["torch_npu"]) == (
        "24.1.0",
        "24.1.0",
        "8.5.0",
        "2.9.0",
    )
    assert "torch" in found


def test_cann_is_looked_for_where_its_set_env_points(machine, monkeypatch):
    ascend(machine)
    write(machine, "elsewhere/x86_64-linux/ascend_toolkit_install.info", "version=9.1.0\n")
    assert _versions.installed({"ASCEND_HOME_PATH": str(machine / "elsewhere")})["CANN"] == "9.1.0"
    write(machine, "older/version.cfg", "runtime_running_version=[7.2.0.1.231:8.0.0]\n")
    assert _versions.installed({"ASCEND_TOOLKIT_HOME": str(machine / "older")})["CANN"] == "7.2.0.1.231"


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"torch": "2.13.0+cpu", "torch_npu": "2.8.0"}, ["torch_npu 2.8.0", "torch 2.13.0+cpu", "torch_npu==2.13.*"]),
        ({"torch_npu": "2.9.0", "torch": "2.9.0", "CANN": "8.3.RC1"}, ["CANN 8.5.0", "CANN 8.3.RC1", "install"]),
        ({"torch_npu": "2.8.0", "torch": "2.8.0", "CANN": "8.2.0"}, ["CANN 8.3.RC1", "CANN 8.2.0"]),
        ({"driver": "25.2.0", "firmware": "24.1.rc3"}, ["driver 25.2.0", "firmware 24.1.rc3", "install the firmware"]),
    ],
)
def test_mismatch_names_both_versions_and_what_to_install(versions, said):  # T33
    (line,) = _versions.mismatches(versions)
    for part in said:
        assert part in line


@pytest.mark.parametrize(
    "versions",
    [
        {"torch": "2.9.1+cpu", "torch_npu": "2.9.0.post2", "CANN": "8.5.0", "driver": "25.2.1", "firmware": "25.2.0"},
        {"torch": "2.8.0", "torch_npu": "2.8.0", "CANN": "8.3.0"},  # after its release candidate
        {"torch": "2.13.0", "torch_npu": "2.13.0", "CANN": "8.5.0"},  # what 2.13 was released for is not known
        {},
    ],
)
def test_what_goes_together_is_not_reported(versions):
    assert _versions.mismatches(versions) == []


def test_torch_npu_that_cannot_be_imported_is_diagnosed(machine, package):  # T33
    package("2.8.0", "raise ImportError('libhccl.so: cannot open shared object file')")
    write(machine, "dev/davinci0", "")
    reason = SPEC.probe().reason
    for part in (
        "libhccl.so: cannot open shared object file",
        "torch_npu 2.8.0",
        "CANN is not found on this machine",
        "TORCH_DEVICE_BACKEND_AUTOLOAD=0",
        "torch_npu 2.8.0 needs torch 2.8",
    ):
        assert part in reason


def test_torch_that_carries_cuda_is_refused_without_an_import(machine, package, monkeypatch):
    package(code="raise SystemExit('imported')")
    write(machine, "other/torch/__init__.py", "")
    write(machine, "other/torch/version.py", "__version__ = '2.14.0+cu128'\ncuda: Optional[str] = '12.8'\n")
    monkeypatch.setattr(_probe, "module_folder", lambda name: machine / "other" / name)
    write(machine, "dev/davinci0", "")
    info = SPEC.probe()
    assert not info.usable
    assert "carries CUDA" in info.reason
    assert "+cpu" in info.reason
    write(machine, "other/torch/version.py", "cuda: Optional[str] = None\nhip: Optional[str] = '6'\n")
    assert not _versions.cuda_build("2.14.0")


def test_hardware_is_told_by_device_files_and_the_pci_bus(machine):
    assert SPEC.hardware() is None
    write(machine, "sys/bus/pci/devices/0000:81:00.0/vendor", "0x19e5\n")
    write(machine, "sys/bus/pci/devices/0000:81:00.0/class", "0x120000\n")
    assert SPEC.hardware() == "1 Ascend NPU(s)"
    for name in ("davinci0", "davinci10", "davinci_manager"):
        write(machine, f"dev/{name}", "")
    assert SPEC.hardware() == "2 Ascend NPU(s)"
    assert "torch_npu is not installed" in SPEC.probe().reason


@pytest.mark.parametrize(
    ("timeout", "connect", "execute"),
    [(600, "600", "600"), (0.5, "120", "1"), (90000, "7200", "17340"), (600.2, "601", "601")],
)
def test_hccl_limits_follow_the_sessions_timeout_within_what_hccl_takes(timeout, connect, execute):  # T38
    wanted = SPEC.variables(timeout)
    assert (wanted["HCCL_CONNECT_TIMEOUT"], wanted["HCCL_EXEC_TIMEOUT"]) == (connect, execute)


def test_a_later_session_may_change_what_an_earlier_one_wrote(monkeypatch):
    monkeypatch.setattr(_env, "_written", {})
    environ = {"HCCL_CONNECT_TIMEOUT": "5"}
    _env.set_vendor_variables({"HCCL_EXEC_TIMEOUT": "20", "HCCL_CONNECT_TIMEOUT": "20"}, environ)
    _env.set_vendor_variables({"HCCL_EXEC_TIMEOUT": "30", "HCCL_CONNECT_TIMEOUT": "30"}, environ)
    assert environ == {"HCCL_EXEC_TIMEOUT": "30", "HCCL_CONNECT_TIMEOUT": "5"}


# As torch_npu 2.13 words it.
LATE = (
    "The Inner error is reported as above. The process exits for this inner error, and the current working operator "
    "name is {name}.\nSince the operator is called asynchronously, the stacktrace may be inaccurate. If you want to "
    "get the accurate stacktrace, please set the environment variable ASCEND_LAUNCH_BLOCKING=1.\n"
    "[ERROR] 2026-11-30-14:40:19 (PID:1757, Device:0, RankID:-1) ERR00100 PTA call acl api failed.\n{cause}\n"
)


def test_late_error_names_the_operation_and_how_to_find_its_line(monkeypatch):
    monkeypatch.delenv("ASCEND_LAUNCH_BLOCKING", raising=False)
    error = RuntimeError(LATE.format(name="aclnnMm", cause="E39999: aicore exception 507015"))
    told = str(_errors.device_failure(error))
    assert "operation aclnnMm failed on the NPU: E39999: aicore exception 507015" in told
    assert "ASCEND_LAUNCH_BLOCKING=1" in told
    monkeypatch.setenv("ASCEND_LAUNCH_BLOCKING", "1")
    assert "the right one" in str(_errors.device_failure(error))
    assert _errors.device_failure(RuntimeError("shapes cannot be multiplied")) is None
    assert _errors.device_failure(RuntimeError("NPU out of memory. ERR00100 PTA call acl api failed")) is None


@pytest.mark.parametrize(
    ("cause", "name", "said"),
    [
        ("error code is 107020", "HcclAllreduce", ["107020 (task timeout)", "HcclAllreduce", "HCCL_EXEC_TIMEOUT=20"]),
        (
            "EI0002: The wait execution of the Notify register times out",
            "HcclAllGather",
            ["EI0002", "HCCL_EXEC_TIMEOUT"],
        ),
        ("EI0006: Getting socket times out", "HcclBroadcast", ["EI0006", "HCCL_CONNECT_TIMEOUT=120"]),
    ],
)
def test_error_of_a_collective_names_the_operation_and_the_variable(monkeypatch, cause, name, said):  # T38
    monkeypatch.setenv("HCCL_EXEC_TIMEOUT", "20")
    monkeypatch.setenv("HCCL_CONNECT_TIMEOUT", "120")
    told = _errors.fabric_fault(RuntimeError(LATE.format(name=name, cause=cause)))
    for part in said:
        assert part in told
    assert _errors.fabric_fault(RuntimeError(LATE.format(name="aclnnMm", cause="507015"))) is None
