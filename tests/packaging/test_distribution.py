"""The wheel as a user gets it: built from this tree, installed alone, complete, and light to import."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HEAVY = ("torch", "torch_npu", "torch_xla", "torch_tpu")
CLEAN = {"PATH": "/usr/bin:/bin"}  # no PYTHONPATH and no ACCEL_* setting: what is found is what was installed


def packages() -> list[Path]:
    """The import packages of the two source roots."""
    return [ROOT / "accel", *sorted(path.parent for path in ROOT.glob("backends/*/__init__.py"))]


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder that is not the repository, so that nothing is found there by accident."""
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=CLEAN, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("accel", "backends"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    build = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir")
    run(source, sys.executable, *build, source / "dist", source)
    (built,) = (source / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a new environment that holds the wheel and borrows the dependencies of this one."""
    home = tmp_path_factory.mktemp("environment")
    run(home, sys.executable, "-m", "venv", "--without-pip", home)
    python = home / "bin" / "python"
    run(home, sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (site,) = home.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def test_wheel_holds_every_file_of_the_packages(wheel: Path) -> None:
    shipped = set(zipfile.ZipFile(wheel).namelist())
    for package in packages():
        files = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        expected = {path.relative_to(package.parent).as_posix() for path in files}
        assert expected <= shipped, f"left out of the wheel: {sorted(expected - shipped)}"


def test_wheel_holds_nothing_but_the_packages_and_their_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {package.name for package in packages()}
    info = f"accel_torch-{PROJECT['project']['version']}.dist-info"
    assert {name.split("/")[0] for name in names} == {*tops, info}
    assert f"{info}/licenses/LICENSE" in names


def test_each_package_is_marked_as_typed(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert all(f"{package.name}/py.typed" in names for package in packages())


def test_entry_points_are_those_of_pyproject_and_each_leads_to_a_shipped_package(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
    points = configparser.ConfigParser(delimiters=("=",))
    points.read_string(archive.read(name).decode())
    assert dict(points["accel.backends"]) == PROJECT["project"]["entry-points"]["accel.backends"]
    assert dict(points["console_scripts"]) == PROJECT["project"]["scripts"]
    targets = {value.split(":")[0].split(".")[0] for section in points.values() for value in section.values()}
    assert targets <= {package.name for package in packages()}


def test_importing_accel_loads_neither_torch_nor_a_vendor_package(installed: Path) -> None:
    code = f"import accel, sys; print(*{{name.split('.')[0] for name in sys.modules}} & set({HEAVY}))"
    assert run(installed.parent, installed, "-c", code).stdout.split() == []


@pytest.mark.parametrize("arguments", [["--help"], ["bench", "--help"], ["compare", "--help"], ["doctor", "--help"]])
def test_help_loads_neither_torch_nor_a_vendor_package(installed: Path, arguments: list[str]) -> None:
    done = run(installed.parent, installed, "-X", "importtime", "-m", "accel", *arguments)
    loaded = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in done.stderr.splitlines()}
    assert "accel" in loaded
    assert loaded.isdisjoint(HEAVY)
    assert "Usage" in done.stdout


def test_the_command_is_installed_and_does_the_same_as_the_module(installed: Path) -> None:
    command = run(installed.parent, installed.with_name("accel"), "--help").stdout
    module = run(installed.parent, installed, "-m", "accel", "--help").stdout
    # Lines are padded to the length of the usage, which differs.
    assert command.split() == module.replace("python -m accel", "accel").split()


def test_built_in_backends_are_found_through_their_entry_points(installed: Path) -> None:
    code = (
        "import accel; print(*sorted(info.name for info in accel.backends() if info.name in {'cpu'} and info.usable))"
    )
    assert run(installed.parent, installed, "-c", code).stdout.split() == ["cpu"]
