"""Every kind of bad input that `accel compare` may be given: each named in a typed error, none dropped in silence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from accel import chips
from accel.compare import compare, load, parse_prices
from accel.errors import AccelError, ArgumentError, RecordError
from tests.unit.test_compare import plain, record, save, terminal
from tests.unit.test_records import GOAL

BACKWARDS = {**GOAL, "evaluated_at": {"values": [40.0, 39.0, 41.0], "unit": "s"}}

BAD: dict[str, tuple[str, str]] = {
    "truncated": (json.dumps(plain("bad"))[:-50], "truncated or not JSON"),
    "another schema version": (json.dumps({**plain("bad"), "schema": "accel-record/2"}), "newer than"),
    "NaN figure": (json.dumps(plain("bad", results__throughput__value=float("nan"))), "NaN is not JSON"),
    "infinite figure": (json.dumps(plain("bad", results__throughput__value=32.5)).replace("32.5", "1e999"), "throughp"),
    "step that took less than no time": (
        json.dumps(plain("bad", results__step_times__values=[0.9, -0.1, 1.0, 1.1])),
        "step_times.values.1",
    ),
    "clock that went backwards": (
        json.dumps(plain("bad", goal=BACKWARDS)),
        "39.0 s after 40.0 s: the clock went backwards",
    ),
    "zero steps": (
        json.dumps(plain("bad", protocol__steps__value=0, results__step_times__values=[0.0])),
        "protocol.steps is 0, so nothing was timed",
    ),
    "foreign file": ('{"name": "package"}', "not an accel record"),
    "empty file": ("", "empty file"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_record_is_named_alone_and_among_good_ones(tmp_path: Path, kind: str) -> None:
    text, said = BAD[kind]
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(RecordError) as alone:
        load([path])
    save(tmp_path, "good")
    with pytest.raises(RecordError) as among:
        load([tmp_path])
    loaded = load([tmp_path], skip_invalid=True)
    assert [one.id for one in loaded.records.values()] == ["good"]
    for line in (str(alone.value), str(among.value), *loaded.skipped):
        assert str(path) in line
        assert said in line
        assert "\n" not in line
    assert len(loaded.skipped) == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"workload__model": "resnet18"}, "model"),
        ({"workload__seed": 1}, "seed"),
        ({"versions": {"torch": "2.9.0"}}, "version: torch"),
    ],
)
def test_records_that_differ_are_all_shown_with_the_difference(changes: dict[str, Any], field: str) -> None:
    report = compare([record("one"), record("two", **changes)])
    assert [entry.record.id for entry in report.entries] == ["one", "two"]
    differences = [*report.differences, *(one for group in report.groups for one in group.conditions)]
    assert field in [difference.field for difference in differences]
    assert field in terminal(report, 160)


def test_a_folder_without_records_is_refused_and_says_how_to_make_one(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("")
    with pytest.raises(ArgumentError, match=r"no records in this folder; make one with `accel bench resnet50"):
        load([tmp_path])


@pytest.mark.parametrize("price", ["H100-SXM5=-2.5", "H100-SXM5=0", "H100-SXM5=nan"])
def test_a_price_that_is_not_above_zero_is_refused(price: str) -> None:
    with pytest.raises(ArgumentError, match="expected USD an hour of one chip, above 0"):
        parse_prices([price])


def test_a_chip_with_a_close_name_is_suggested() -> None:
    run = record("one", hardware__chip__value="NVIDIA H100 80GB HBM3")
    with pytest.raises(ArgumentError, match="did you mean H100-SXM5"):
        compare([run], prices=parse_prices(["H100-SMX5=2"]))
    with pytest.raises(AccelError, match="H100-SXM5"):
        chips.get("H100-SMX5")
