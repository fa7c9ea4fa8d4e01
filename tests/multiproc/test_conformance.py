"""`accel conformance`: on the CPU for real in its small form, and where it cannot run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from accel import conformance, records
from accel.errors import ArgumentError, BackendError

ROOT = Path(__file__).parents[2]


def command(*arguments: str, script: tuple[str, ...] = ("-m", "accel"), **env: str) -> Any:
    return subprocess.run(
        [sys.executable, *script, "conformance", *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", **env},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_a_machine_without_the_hardware_gets_one_reason_and_exit_code_2(tmp_path: Path) -> None:
    done = command("--backend", "cuda", "--out", str(tmp_path / "out"))
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("accel: backend 'cuda' cannot be tested on this machine: ")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"backend": "cudda"}, BackendError, "did you mean 'cuda'"),
        ({"backend": "cpu", "out": Path("/dev/null/out")}, ArgumentError, "cannot be written"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_runs(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        conformance.run(**{"out": tmp_path, **arguments})


def test_without_pytest_the_suite_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel._probe.installed", lambda name: name not in ("pytest", "pytest_timeout"))
    monkeypatch.setattr(conformance, "_usable", lambda name: None)
    with pytest.raises(ArgumentError, match="needs pytest and pytest_timeout.*--only bench"):
        conformance.run("cpu", tmp_path)


def test_the_suite_runs_from_a_bare_checkout_and_is_reported_by_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    script = (str(ROOT / ".ci" / "bare.py"),)
    done = command(
        "--backend", "cpu", "--out", str(out), "--only", "suite", "--tests", "identity or foreign_random", script=script
    )
    assert done.returncode == 0, done.stdout + done.stderr + (out / "suite.log").read_text()
    report = json.loads((out / conformance.REPORT).read_text())
    assert report["passed"] is True
    assert {line["name"]: line["detail"] for line in report["lines"]} == {
        "test_device": "1 passed",
        "test_transport": "1 passed",
    }
    assert report["backend"] == "cpu"
    assert "torch" in report["versions"]


@pytest.mark.timeout(290)
def test_the_benchmark_runs_in_every_precision_and_leaves_records_that_compare_reads(tmp_path: Path) -> None:
    done = command("--backend", "cpu", "--out", str(tmp_path), "--only", "bench", "--limit", "260")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = json.loads((tmp_path / conformance.REPORT).read_text())["lines"]
    assert [line["name"] for line in lines if line["status"] == "passed"] == [
        f"resnet18 {precision} eager" for precision in ("bf16", "fp16", "tf32", "fp32")
    ]
    assert all(line["detail"] for line in lines if line["status"] == "left out")
    found = [records.read(path) for path in sorted((tmp_path / "records").iterdir())]
    assert sorted(record.numerics.policy for record in found) == ["bf16", "fp16", "fp32", "tf32"]
    assert {record.numerics.in_force["execution"] for record in found} == {"eager"}
    compared = subprocess.run(
        [sys.executable, "-m", "accel", "compare", str(tmp_path / "records"), "--csv"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "resnet18" in compared.stdout


def test_a_failing_test_and_a_suite_that_hangs_fail_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    xml = tmp_path / "suite.xml"
    xml.write_text(
        '<testsuites><testsuite><testcase classname="accel.testing.test_device" name="test_a" time="1">'
        '<failure message="no"/></testcase></testsuite></testsuites>'
    )
    (line,) = conformance._by_file(xml)
    assert (line.status, line.detail) == ("failed", "1 failed: test_a")
    outcome = conformance.Outcome("cpu", "measured", {}, [line])
    assert not outcome.passed
    assert not conformance.Outcome("cpu", "measured", {}, []).passed  # nothing ran
    code = conformance._python(["-c", "import time; time.sleep(60)"], tmp_path, tmp_path / "log", 0.5, {})
    assert code is None
