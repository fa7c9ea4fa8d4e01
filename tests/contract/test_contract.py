"""The conformance suite as this project's backends run it: every test of `accel.testing`, on `--backend NAME`."""

from __future__ import annotations

import importlib
from pathlib import Path

import accel.testing

MODULES = sorted(path.stem for path in Path(accel.testing.__file__).parent.glob("test_*.py"))


def collected() -> dict[str, object]:
    found: dict[str, object] = {}
    for module in MODULES:
        theirs = vars(importlib.import_module(f"accel.testing.{module}"))
        tests = {name: value for name, value in theirs.items() if name.startswith(("test_", "Test"))}
        hidden = tests.keys() & found.keys()
        assert not hidden, f"{module} has tests of the same name as another module: {sorted(hidden)}"
        found |= tests
    return found


globals().update(collected())
