"""Brings the suite's option and fixtures into a pytest run that asks for the suite, and into no other.

pytest reads a package's conftest too late for its options when the package is named by `--pyargs`, and a plugin that
adds `--backend` to every run on the machine would collide with other projects' options. Imports neither torch nor
accel.
"""

from __future__ import annotations

import pytest

SUITE = ("accel.testing", "accel/testing", "accel\\testing")


def pytest_load_initial_conftests(early_config: pytest.Config, args: list[str]) -> None:
    if any(name in arg for arg in args for name in SUITE):
        early_config.pluginmanager.import_plugin("accel.testing.plugin")
