"""Which backends are listed, which one is chosen, and that a broken one harms nobody. Entry points are real ones on
sys.path."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import accel
from accel import _probe, registry
from accel.errors import BackendError


@pytest.fixture
def register(tmp_path, monkeypatch):
    """Register third-party backends as a package on sys.path would."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))

    def add(name: str, source: str) -> None:
        (tmp_path / f"plug_{name}.py").write_text(textwrap.dedent(source))
        info = tmp_path / f"plug_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plug-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[accel.backends]\n{name} = plug_{name}:SPEC\n")

    return add


@pytest.fixture(autouse=True)
def clean(monkeypatch, tmp_path):
    for name in ("ACCEL_BACKEND", "PJRT_DEVICE", "TPU_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "root").mkdir()
    monkeypatch.setattr(_probe, "ROOT", tmp_path / "root")
    _probe.import_error.cache_clear()


def device_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / "root" / "dev" / name
    path.parent.mkdir(exist_ok=True)
    path.touch()


def info(name: str):
    return next(entry for entry in accel.backends() if entry.name == name)


SPEC = """
    from accel.backend import BackendInfo
    class Spec:
        name = "{name}"
        aliases = {aliases}
        def hardware(self): return {hardware}
        def probe(self): return BackendInfo(self.name, usable={usable}, reason="{reason}", origin="measured")
        def load(self): {load}
    SPEC = Spec()
"""


def spec(name, aliases=(), hardware=None, usable=True, reason="it is fine", load="raise RuntimeError('no parts')"):
    return SPEC.format(name=name, aliases=aliases, hardware=repr(hardware), usable=usable, reason=reason, load=load)


def test_no_hardware_and_no_variable_means_cpu():
    assert accel.get_backend().name == "cpu"


def test_every_built_in_backend_is_listed_with_a_reason():
    listed = {entry.name: entry for entry in accel.backends()}
    assert {"cpu", "cuda", "npu", "xla", "tpu"} <= set(listed)
    assert all(entry.reason for entry in listed.values())
    assert listed["cpu"].usable
    assert listed["cpu"].versions["torch"]


def test_unknown_name_lists_every_backend_and_the_nearest_match(monkeypatch):
    monkeypatch.setenv("ACCEL_BACKEND", "cudda")
    with pytest.raises(
        BackendError, match="ACCEL_BACKEND='cudda' is not a registered backend; did you mean 'cuda'"
    ) as caught:
        accel.get_backend()
    for name in ("cpu", "cuda", "npu (ascend)", "xla (tpu)"):
        assert name in str(caught.value)


@pytest.mark.parametrize("name", ["", "  "])
def test_empty_variable_is_unset_but_an_empty_argument_is_an_error(monkeypatch, name):
    monkeypatch.setenv("ACCEL_BACKEND", name)
    assert accel.get_backend().name == "cpu"
    with pytest.raises(BackendError, match="names no backend"):
        accel.get_backend(name)


def test_argument_wins_over_the_variable(monkeypatch):
    monkeypatch.setenv("ACCEL_BACKEND", "cuda")
    assert accel.get_backend("cpu").name == "cpu"
    assert accel.get_backend("CPU").name == "cpu"


def test_ascend_means_npu(monkeypatch):
    with pytest.raises(BackendError, match="backend='ascend' cannot be used: npu: "):
        accel.get_backend("ascend")


def test_hardware_present_with_unusable_software_is_an_error_not_cpu(tmp_path):
    device_file(tmp_path, "nvidia0")
    with pytest.raises(
        BackendError,
        match=r"1 NVIDIA GPU\(s\) is present but cannot be used.*ACCEL_BACKEND=cpu to run on CPU on purpose",
    ):
        accel.get_backend()
    assert accel.get_backend("cpu").name == "cpu"


def test_importable_is_not_present(register):  # T32 (3)
    register("ghost", spec("ghost", hardware=None))
    assert accel.get_backend().name == "cpu"


def test_two_kinds_of_hardware_are_an_error_that_names_both(register, tmp_path):  # T32 (2)
    register("other", spec("other", hardware="1 Other"))
    device_file(tmp_path, "nvidia0")
    with pytest.raises(BackendError, match="two kinds of accelerator are present") as caught:
        accel.get_backend()
    assert "NVIDIA" in str(caught.value)
    assert "1 Other" in str(caught.value)
    assert "ACCEL_BACKEND" in str(caught.value)


def test_npu_shim_that_patches_torch_cuda_is_still_an_npu(tmp_path, monkeypatch):  # T32 (1)
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    device_file(tmp_path, "davinci0")
    with pytest.raises(BackendError, match=r"1 Ascend NPU\(s\) is present but cannot be used: npu: "):
        registry.select()


def test_one_tpu_with_two_drivers_is_one_kind_of_hardware(tmp_path):
    device_file(tmp_path, "accel0")
    with pytest.raises(
        BackendError, match=r"1 Google TPU chip\(s\) is present but cannot be used: (tpu|xla): .*; (tpu|xla): "
    ):
        registry.select()


def test_tpu_on_the_pci_bus_is_found(tmp_path):
    entry = tmp_path / "root/sys/bus/pci/devices/0000:00:05.0"
    entry.mkdir(parents=True)
    (entry / "vendor").write_text("0x1ae0\n")
    (entry / "class").write_text("0x120000\n")
    assert info("xla").hardware == "1 Google TPU chip(s)"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Install a stand-in package, as far as detection looks: a module, and a distribution of a version."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))

    def add(name: str, version: str, source: str = "") -> None:
        (site / f"{name}.py").write_text(source)
        meta = site / f"{name}-{version}.dist-info"
        meta.mkdir()
        (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    return add


def paired() -> str:
    """A version of torch_xla that pairs with the torch that is installed."""
    return importlib.metadata.version("torch").partition("+")[0]


DEADLY = "raise SystemExit('torch_xla was imported')"


@pytest.mark.parametrize("client", [None, "TPU", "tpu"])
def test_torch_xla_without_a_tpu_is_not_usable_and_not_even_imported(package, monkeypatch, client):  # T32 (3)
    package("torch_xla", paired(), DEADLY)
    if client:
        monkeypatch.setenv("PJRT_DEVICE", client)
    assert not info("xla").usable
    assert info("xla").origin is None
    assert info("xla").reason.startswith("no TPU is present")
    assert "PJRT_DEVICE=CPU runs XLA on the CPU on purpose" in info("xla").reason
    assert accel.get_backend().name == "cpu"


def test_xla_on_cpu_is_asked_for_by_name_and_never_measured(package, monkeypatch):
    package("torch_xla", paired(), "device = list")
    monkeypatch.setenv("PJRT_DEVICE", "cpu")
    found = info("xla")
    assert (found.usable, found.origin, found.hardware) == (True, "emulated", None)
    assert found.reason.startswith("XLA on CPU, as PJRT_DEVICE=CPU asks")
    assert found.versions["torch_xla"] == paired()
    assert registry.select("tpu")[0].name == "xla"
    assert registry.select()[0].name == "cpu"  # usable is not present


def test_xla_on_cpu_needs_torch_xla(monkeypatch):
    if importlib.util.find_spec("torch_xla") is not None:
        pytest.fail("this test belongs to an environment without torch_xla")
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    assert info("xla").reason == "torch_xla is not installed; run `pip install accel-torch[xla]`"


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        ((), "but torch_xla is not installed"),
        (("torch_xla",), "but its driver libtpu is not installed"),
        (("torch_xla", "libtpu"), None),
    ],
)
def test_tpu_says_which_package_it_lacks(package, tmp_path, installed, said):
    device_file(tmp_path, "accel0")
    for name in installed:
        package(name, paired())
    found = info("xla")
    assert found.hardware == "1 Google TPU chip(s)"
    if said is None:
        assert (found.usable, found.origin) == (True, "measured")
        return
    assert not found.usable
    assert found.reason.startswith("1 Google TPU chip(s) is present, " + said)
    assert "pip install" in found.reason


def test_torch_and_torch_xla_of_different_minors_are_named_without_an_import(package, monkeypatch):
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    package("torch_xla", "2.4.0", DEADLY)
    assert not info("xla").usable
    assert "torch_xla 2.4.0 do not pair" in info("xla").reason
    assert f"torch {importlib.metadata.version('torch')}" in info("xla").reason


def test_torch_xla_that_cannot_be_imported_is_named(package, monkeypatch):
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    package("torch_xla", paired(), "raise ImportError('_XLAC.so: undefined symbol: _ZN5torch4lazy')")
    with pytest.raises(BackendError, match="starting torch_xla fails: .*undefined symbol: _ZN5torch4lazy"):
        registry.select("xla")


def test_another_pjrt_client_is_refused(package, monkeypatch):
    monkeypatch.setenv("PJRT_DEVICE", "CUDA")
    package("torch_xla", paired(), DEADLY)
    assert info("xla").reason.startswith("PJRT_DEVICE='CUDA': expected TPU, or CPU")


def test_alias_goes_to_whichever_is_usable(register):
    register("aa", spec("aa", aliases=("shared",), usable=False))
    register("bb", spec("bb", aliases=("shared",), usable=True))
    assert registry.select("shared")[0].name == "bb"


@pytest.mark.parametrize(
    "source",
    ["raise ImportError('libfoo.so: undefined symbol: bar')", "import sys; sys.exit(3)", "SPECC = 1"],
)
def test_broken_entry_point_is_listed_and_others_work(register, source):
    register("broken", source)
    assert not info("broken").usable
    assert "failed to load" in info("broken").reason
    assert accel.get_backend("cpu").name == "cpu"
    with pytest.raises(BackendError, match="backend='broken' cannot be used") as caught:
        accel.get_backend("broken")
    assert caught.value.__cause__ is not None


def test_probe_that_raises_is_listed(register):
    register("grumpy", spec("grumpy").replace("return BackendInfo", "raise SystemExit(1); return BackendInfo"))
    assert "its probe failed: SystemExit" in info("grumpy").reason


def test_detector_that_raises_is_reported_and_harms_nobody(register, caplog):
    register("odd", spec("odd").replace("def hardware(self): return None", "def hardware(self): raise OSError('bus')"))
    assert accel.get_backend().name == "cpu"
    assert "backend 'odd' could not look for its hardware: OSError: bus" in caplog.text


def test_load_that_fails_chains_its_cause(register):
    register("late", spec("late"))
    with pytest.raises(BackendError, match="backend 'late' was chosen but failed to load: no parts") as caught:
        accel.get_backend("late")
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_name_claimed_twice_names_both(register, tmp_path):
    register("twice", spec("twice"))
    (tmp_path / "plug_twice-1.0.dist-info").rename(tmp_path / "first-1.0.dist-info")
    (tmp_path / "plug_other.py").write_text(textwrap.dedent(spec("twice")))
    second = tmp_path / "second-1.0.dist-info"
    second.mkdir()
    (second / "METADATA").write_text("Metadata-Version: 2.1\nName: second\nVersion: 1.0\n")
    (second / "entry_points.txt").write_text("[accel.backends]\ntwice = plug_other:SPEC\n")
    with pytest.raises(BackendError, match="'twice' is registered twice"):
        accel.backends()


def run(code: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, **env}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "shown"),
    [
        ("raise ImportError('_C.so: undefined symbol: _ZN2at')", "undefined symbol: _ZN2at"),
        ("raise RuntimeError('driver too old')", "driver too old"),
    ],
)
def test_broken_torch_npu_is_named_and_cpu_goes_on(tmp_path, fault, shown):  # T33
    package = tmp_path / "site" / "torch_npu"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(fault)
    for name, version, points in (("torch_npu", "2.8.0", "[torch.backends]\ntorch_npu = torch_npu:_autoload\n"),):
        meta = tmp_path / "site" / f"{name}-{version}.dist-info"
        meta.mkdir()
        (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (meta / "entry_points.txt").write_text(points)
    path = os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", ""), *sys.path])
    plain = run("import torch", PYTHONPATH=path)
    assert plain.returncode != 0, "the fixture must break plain `import torch`, or the test shows nothing"
    done = run(
        """
        import accel, sys
        npu = next(b for b in accel.backends() if b.name == "npu")
        print(npu.usable, npu.reason, npu.versions)
        assert accel.get_backend("cpu").name == "cpu"
        try:
            accel.get_backend("npu")
        except accel.errors.BackendError as error:
            print("CHOSEN", error)
        """,
        PYTHONPATH=path,
    )
    assert done.returncode == 0, done.stderr
    listed, chosen = done.stdout.split("CHOSEN")
    for text in (listed, chosen):
        assert shown in text
        assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in text
        assert "torch_npu 2.8.0" in text
    assert listed.startswith("False")


def test_listing_initialises_nothing_and_fork_stays_safe():
    done = run(
        """
        import accel, os, sys
        accel.backends()
        assert "torch" not in sys.modules, "listing imported torch"
        child = os.fork()
        if child == 0:
            accel.get_backend("cpu").device.seed(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        """
    )
    assert done.returncode == 0, done.stderr
