"""`accel conformance`: the suite and the benchmark of one backend on this machine, in a few minutes, and what came out.

Each part runs in a process of its own with a time limit, so that a crash or a hang in one leaves the others. Owns the
order, the limits and `conformance.json`; the suite is `accel.testing`, the benchmark's runs are `_runs`.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from accel import __version__, _probe, registry
from accel.errors import ArgumentError, BackendError

PARTS = ("suite", "bench")
LIMIT = 350.0  # seconds for everything: a machine may be lent for minutes
SUITE_SHARE = 0.5  # of the limit at most
REPORT = "conformance.json"


@dataclass
class Line:
    """One row of the report. `status`: "passed", "failed", "left out" (with the reason in `detail`)."""

    part: str
    name: str
    status: str
    seconds: float
    detail: str


@dataclass
class Outcome:
    """What a run of the command found."""

    backend: str
    origin: str
    versions: dict[str, str]
    lines: list[Line] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return any(line.status == "passed" for line in self.lines) and all(
            line.status != "failed" for line in self.lines
        )


def run(backend: str, out: Path, parts: tuple[str, ...] = PARTS, tests: str = "", limit: float = LIMIT) -> Outcome:
    """Run `parts` on `backend` and write the report, the suite's output and the benchmark's records to `out`.

    tests: only the suite's tests that match, as pytest's -k. Raises `BackendError` with the one reason where the
    backend cannot be used here, `ArgumentError` for what cannot be run or written.
    """
    info = _usable(backend)
    if "suite" in parts:
        missing = [name for name in ("pytest", "pytest_timeout") if not _probe.installed(name)]
        if missing:
            raise ArgumentError(
                f"the suite needs {' and '.join(missing)}, which this environment lacks; install it, or run the "
                "benchmark alone with --only bench"
            )
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / REPORT).unlink(missing_ok=True)
    except OSError as error:
        raise ArgumentError(f"--out {str(out)!r} cannot be written: {error.strerror}") from error
    versions = {**info.versions, "accel": __version__, "python": platform.python_version(), "os": platform.platform()}
    outcome = Outcome(info.name, info.origin or "measured", versions)
    end = time.monotonic() + limit
    if "suite" in parts:
        seconds = limit * SUITE_SHARE if "bench" in parts else limit
        outcome.lines += _suite(info.name, out, tests, seconds)
        _write(outcome, out)
    if "bench" in parts:
        outcome.lines += _bench(info.name, out, end)
    _write(outcome, out)
    return outcome


def _usable(name: str) -> Any:
    for info in registry.backends():
        if name in (info.name, *info.aliases):
            if not info.usable:
                raise BackendError(f"backend {name!r} cannot be tested on this machine: {info.reason}")
            return info
    registry.select(name)  # raises for a name that nobody has registered, and lists those that are
    raise BackendError(f"backend {name!r} is not registered")


def _suite(backend: str, out: Path, tests: str, seconds: float) -> list[Line]:
    """One row for each file of the suite."""
    config, report, log = out / "pytest.ini", out / "suite.xml", out / "suite.log"
    config.write_text("[pytest]\n")  # so that no configuration above the folder counts
    report.unlink(missing_ok=True)
    command = [
        "-m", "pytest", "-q", "-ra", "-c", str(config), "-p", "no:cacheprovider", "-p", "accel.testing.plugin",
        "--timeout=120", f"--junitxml={report}", "--backend", backend, *(["-k", tests] if tests else []),
        "--pyargs", "accel.testing",
    ]  # fmt: skip
    started = time.monotonic()
    code = _python(command, out, log, seconds, {})
    took = time.monotonic() - started
    if code is None or not report.exists():
        why = f"ended by the time limit of {seconds:.0f} s" if code is None else f"exit code {code} without a report"
        return [Line("suite", "accel.testing", "failed", took, f"{why}; see {log.name}")]
    lines = _by_file(report)
    if not lines:
        lines = [Line("suite", "accel.testing", "failed", took, f"no test ran (exit code {code}); see {log.name}")]
    return lines


def _by_file(report: Path) -> list[Line]:
    counts: dict[str, Counter[str]] = {}
    seconds: dict[str, float] = {}
    named: dict[str, list[str]] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        file = str(case.get("classname", "")).rpartition(".")[2]
        kind = "passed"
        if case.find("failure") is not None or case.find("error") is not None:
            kind = "failed"
            named.setdefault(file, []).append(str(case.get("name")))
        elif case.find("skipped") is not None:
            kind = "skipped"
        counts.setdefault(file, Counter())[kind] += 1
        seconds[file] = seconds.get(file, 0.0) + float(case.get("time", 0))
    lines = []
    for file, count in counts.items():
        status = "failed" if count["failed"] else "passed" if count["passed"] else "left out"
        detail = ", ".join(f"{count[kind]} {kind}" for kind in ("passed", "failed", "skipped") if count[kind])
        failed = f": {', '.join(named[file])}" if file in named else ""
        lines.append(Line("suite", file, status, seconds[file], detail + failed))
    return lines


def _bench(backend: str, out: Path, end: float) -> list[Line]:
    """One row for each run; each way of executing has a process of its own."""
    from accel.conformance._runs import EXECUTIONS

    lines: list[Line] = []
    for execution in EXECUTIONS:
        rows, log = out / f"bench-{execution}.jsonl", out / f"bench-{execution}.log"
        rows.unlink(missing_ok=True)
        left = end - time.monotonic()
        started = time.monotonic()
        code = None
        if left > 0:
            command = ["-m", "accel.conformance._runs", backend, execution, str(out), f"{left:.0f}"]
            code = _python(command, out, log, left + 5.0, {"ACCEL_BACKEND": backend})
        done = [Line(**json.loads(line)) for line in rows.read_text().splitlines()] if rows.exists() else []
        lines += done
        if code != 0:
            why = "ended by the time limit" if code is None else f"ended with exit code {code}"
            took = time.monotonic() - started
            lines.append(Line("bench", execution, "failed", took, f"{why} after {len(done)} runs; see {log.name}"))
    return lines


def _python(command: list[str], out: Path, log: Path, seconds: float, env: dict[str, str]) -> int | None:
    """Run `python COMMAND` in `out`; its exit code, or None where the time limit ended it and all that it started."""
    paths = os.pathsep.join(path for path in sys.path if path)
    environ = {**os.environ, "PYTHONPATH": paths, **env}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=out, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _write(outcome: Outcome, out: Path) -> None:
    text = json.dumps({"passed": outcome.passed, **asdict(outcome)}, indent=1)
    (out / REPORT).write_text(text + "\n")
