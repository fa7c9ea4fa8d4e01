"""Settings that are on or off."""

from __future__ import annotations

import pytest

from accel import _env
from accel.errors import ArgumentError


@pytest.mark.parametrize(("text", "on"), [("1", True), (" 1 ", True), ("0", False), ("", False), (None, False)])
def test_switch_is_on_with_1_only(text, on):
    assert _env.switch("ACCEL_XLA_SPMD", {} if text is None else {"ACCEL_XLA_SPMD": text}) is on


@pytest.mark.parametrize("text", ["yes", "true", "2", "-1"])
def test_any_other_value_is_refused(text):
    with pytest.raises(ArgumentError, match=f"ACCEL_XLA_SPMD='{text}': expected 1 for on, or 0 for off"):
        _env.switch("ACCEL_XLA_SPMD", {"ACCEL_XLA_SPMD": text})
