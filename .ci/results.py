"""Decides whether what ran is a pass: a lane that did not run, ran no test or skipped one without leave fails.

`lane NAME` checks the JUnit file of one lane; `summary` checks all lanes and checks of one `make test` and prints the
closing table, whose last line is the total. A skipped or expectedly failing test needs a line in
`tests/allowed-skips.txt` whose pattern matches its reason.
"""

from __future__ import annotations

import argparse
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "build" / "results"
ALLOWED = ROOT / "tests" / "allowed-skips.txt"


@dataclass
class Outcome:
    """What one lane did."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def read_allowed(path: Path) -> list[tuple[str, re.Pattern[str]]]:
    """The lines `LANE PATTERN` of the list: LANE is a lane or `*`, PATTERN must match the whole reason of a skip."""
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return [(lane, re.compile(pattern)) for lane, pattern in (line.split(maxsplit=1) for line in lines)]


def read_lane(name: str, report: Path, allowed: list[tuple[str, re.Pattern[str]]], since: float = 0.0) -> Outcome:
    """Read a lane's JUnit file; the outcome's `problems` say why it is no pass."""
    outcome = Outcome()
    if not report.exists() or report.stat().st_mtime < since:
        outcome.problems.append(f"lane {name} did not run to its end: it wrote no {report.name}")
        return outcome
    for case in ET.parse(report).getroot().iter("testcase"):
        test = f"{case.get('classname')}::{case.get('name')}"
        outcome.seconds += float(case.get("time", 0))
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            outcome.failed += 1
            outcome.problems.append(f"lane {name}: {test} failed")
        elif skip is None:
            outcome.passed += 1
        else:
            outcome.skipped += 1
            reason = skip.get("message", "")
            if not any(lane in ("*", name) and pattern.fullmatch(reason) for lane, pattern in allowed):
                outcome.problems.append(f"lane {name}: {test} was skipped without leave: {reason or 'no reason given'}")
    if outcome.passed == 0:
        outcome.problems.append(f"lane {name} ran no test that passed")
    return outcome


def summarize(lanes: dict[str, Outcome], checks: dict[str, bool]) -> list[str]:
    """The closing lines: one a check, one a lane, each problem, and the total alone on the last line.

    A check counts as a test; a skip without leave and a lane that did not run count as failures.
    """
    lines = [f"  {name:<12} {'passed' if good else 'FAILED or did not run'}" for name, good in checks.items()]
    for name, one in lanes.items():
        counts = f"{one.passed} passed, {one.failed} failed, {one.skipped} skipped in {one.seconds:.0f} s"
        lines.append(f"  {name:<12} {counts}")
    lines += [f"  problem: {problem}" for one in lanes.values() for problem in one.problems]
    passed = sum(one.passed for one in lanes.values()) + sum(checks.values())
    failed = sum(len(one.problems) for one in lanes.values()) + list(checks.values()).count(False)
    return [*lines, f"{passed} passed, {failed} failed, {sum(one.skipped for one in lanes.values())} skipped"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("lane").add_argument("name")
    summary = commands.add_parser("summary")
    summary.add_argument("--since", type=float, required=True, help="results older than this Unix time do not count")
    summary.add_argument("--lanes", type=lambda text: text.split(","), required=True)
    summary.add_argument("--checks", type=lambda text: text.split(","), required=True)
    options = parser.parse_args()

    allowed = read_allowed(ALLOWED)
    if options.command == "lane":
        problems = read_lane(options.name, RESULTS / f"{options.name}.xml", allowed).problems
        print(*problems, sep="\n", end="\n" if problems else "")
        return bool(problems)
    lanes = {name: read_lane(name, RESULTS / f"{name}.xml", allowed, options.since) for name in options.lanes}
    files = {name: RESULTS / name for name in options.checks}
    checks = {name: file.exists() and file.stat().st_mtime >= options.since for name, file in files.items()}
    print(*summarize(lanes, checks), sep="\n")
    return not all(checks.values()) or any(one.problems for one in lanes.values())


if __name__ == "__main__":
    sys.exit(main())
