"""A backend that this project does not know passes the suite: an entry point and one file, as others would ship it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOY = Path(__file__).parent / "third_party" / "toy_accelerator.py"


@pytest.fixture
def installed(tmp_path):
    """The toy as `pip install` would leave it: a module and its entry point, outside the repository."""
    site = tmp_path / "site"
    info = site / "toy_accelerator-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "toy_accelerator.py").write_text(TOY.read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-accelerator\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[accel.backends]\ntoy = toy_accelerator:SPEC\n")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])}


def suite(env, folder, *arguments):
    """Run the suite against the toy, from a folder outside the repository."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "accel.testing"]
    return subprocess.run(
        [*command, "--backend", "toy", *arguments],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=1100,
        check=False,
    )


def test_third_partys_backend_is_small():
    assert len(TOY.read_text().splitlines()) < 150


@pytest.mark.timeout(1200)
def test_third_partys_backend_passes_the_suite(installed, tmp_path):
    done = suite(installed, tmp_path, "-rs")
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = int(re.search(r"(\d+) passed", done.stdout)[1])
    assert passed > 150, done.stdout[-2000:]
    skips = re.findall(r"^SKIPPED \[\d+\] \S+ (.*)$", done.stdout, re.MULTILINE)
    assert all("unsupported by the capability table" in reason for reason in skips), skips


def test_a_broken_third_partys_backend_fails_the_suite(installed, tmp_path):
    """The suite must be able to fail: this toy seeds nothing."""
    module = tmp_path / "site" / "toy_accelerator.py"
    fault = "    def current(self) -> int:"
    assert fault in module.read_text()
    module.write_text(
        module.read_text().replace(fault, "    def seed(self, n: int) -> None:\n        pass\n\n" + fault, 1)
    )
    done = suite(installed, tmp_path, "-k", "seed_covers")
    assert done.returncode == 1, done.stdout[-3000:]
    assert "test_seed_covers_every_generator_and_repeats" in done.stdout
