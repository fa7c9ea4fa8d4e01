"""`.ci/results.py`: only a lane that ran, passed and skipped nothing without leave is a pass."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "results.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_results", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


results = load()


@pytest.fixture(scope="module")
def lane(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real report of a real pytest run: two tests pass, one is skipped."""
    folder = tmp_path_factory.mktemp("lane")
    test = folder / "test_sample.py"
    test.write_text(
        "import pytest\n"
        "def test_one(): pass\n"
        "def test_two(): pass\n"
        "@pytest.mark.skip(reason='needs two hosts')\n"
        "def test_three(): pass\n"
    )
    return run_pytest(folder)


def run_pytest(folder: Path) -> Path:
    report = folder / "lane.xml"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-c",
        "/dev/null",
        "--rootdir",
        folder,
        f"--junitxml={report}",
        folder,
    ]
    subprocess.run(command, capture_output=True, timeout=120, check=False)
    return report


def allow(tmp_path: Path, text: str) -> list[object]:
    path = tmp_path / "allowed.txt"
    path.write_text(text)
    return results.read_allowed(path)


def test_a_lane_with_an_allowed_skip_passes(lane: Path, tmp_path: Path) -> None:
    outcome = results.read_lane("cpu", lane, allow(tmp_path, "# why\ncpu needs two hosts\n"))
    assert (outcome.passed, outcome.failed, outcome.skipped, outcome.problems) == (2, 0, 1, [])


@pytest.mark.parametrize("allowed", ["", "npu needs two hosts\n", "cpu needs two\n"])
def test_a_skip_without_leave_fails_the_lane(lane: Path, tmp_path: Path, allowed: str) -> None:
    (problem,) = results.read_lane("cpu", lane, allow(tmp_path, allowed)).problems
    assert "test_three" in problem
    assert "needs two hosts" in problem


def test_a_lane_that_wrote_no_report_fails(tmp_path: Path) -> None:
    (problem,) = results.read_lane("npu", tmp_path / "npu.xml", []).problems
    assert "lane npu did not run" in problem


def test_a_report_of_an_earlier_call_does_not_count(lane: Path, tmp_path: Path) -> None:
    later = lane.stat().st_mtime + 1
    (problem,) = results.read_lane("cpu", lane, allow(tmp_path, "* .*\n"), since=later).problems
    assert "did not run" in problem


def test_a_lane_that_ran_no_test_fails(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text("")
    (problem,) = results.read_lane("cpu", run_pytest(tmp_path), []).problems
    assert "ran no test" in problem


def test_a_failing_and_an_erring_test_are_named(tmp_path: Path) -> None:
    (tmp_path / "test_sample.py").write_text(
        "def test_good(): pass\ndef test_bad(): assert 0\ndef test_err(no_such_fixture): pass\n"
    )
    outcome = results.read_lane("cpu", run_pytest(tmp_path), [])
    assert (outcome.passed, outcome.failed) == (1, 2)
    assert "test_bad" in outcome.problems[0]
    assert "test_err" in outcome.problems[1]


def test_the_last_line_is_the_total_alone(lane: Path, tmp_path: Path) -> None:
    good = results.read_lane("cpu", lane, allow(tmp_path, "* .*\n"))
    assert results.summarize({"cpu": good}, {"lint": True})[-1] == "3 passed, 0 failed, 1 skipped"


def test_everything_that_is_no_pass_counts_as_a_failure_in_the_total(lane: Path, tmp_path: Path) -> None:
    unexcused = results.read_lane("cpu", lane, [])
    absent = results.read_lane("npu", tmp_path / "npu.xml", [])
    lines = results.summarize({"cpu": unexcused, "npu": absent}, {"lint": True, "docs": False})
    assert lines[-1] == "3 passed, 3 failed, 1 skipped"
    assert any("docs" in line and "did not run" in line for line in lines)
