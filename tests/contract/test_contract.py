"""The conformance suite as this project's backends run it: all of `accel.testing`, on `--backend NAME`."""

from __future__ import annotations

import sys
from pathlib import Path

import accel.testing
from accel.testing.test_device import *  # noqa: F403
from accel.testing.test_precision import *  # noqa: F403
from accel.testing.test_session import *  # noqa: F403
from accel.testing.test_two_ranks import *  # noqa: F403


def test_every_module_of_the_suite_is_run_here():
    modules = {path.stem for path in Path(accel.testing.__file__).parent.glob("test_*.py")}
    shown = {name.rpartition(".")[2] for name in sys.modules if name.startswith("accel.testing.test_")}
    assert shown == modules
    for name in modules:
        theirs = {test for test in vars(sys.modules[f"accel.testing.{name}"]) if test.startswith("test_")}
        missing = {t for t in theirs if globals().get(t) is not vars(sys.modules[f"accel.testing.{name}"])[t]}
        assert not missing, f"hidden by a test of the same name in another module: {missing}"
