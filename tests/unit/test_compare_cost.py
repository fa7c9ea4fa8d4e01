"""What a run costs, and what its epochs and its target took: prices, times and their marks in every output."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

from accel.compare import compare, csv_text, markdown_text, parse_prices, write_html
from accel.compare._cells import columns
from accel.errors import ArgumentError
from tests.unit.test_compare import record, terminal
from tests.unit.test_records import GOAL

H100 = {"hardware__chip__value": "NVIDIA H100 80GB HBM3", "workload__image_size__value": 224}


def test_cost_is_price_times_chips_over_throughput() -> None:
    run = record("a", **H100, hardware__devices__value=8, results__throughput__value=20_000.0)
    (entry,) = compare([run], prices={"H100-SXM5": 2.5}).entries
    hours = 1e6 / 20_000 / 3600
    assert entry.cost.million == pytest.approx(hours * 8 * 2.5)
    assert entry.cost.epoch == pytest.approx(hours * 8 * 2.5 * 1.281167)
    assert entry.cost.words == "2.5 USD a chip and hour (--price)"


def test_a_price_of_the_table_comes_with_place_date_and_source(tmp_path: Path) -> None:
    report = compare([record("a", **H100)])
    (entry,) = report.entries
    assert entry.cost.price == 6.88
    page = write_html(report, tmp_path / "page.html").read_text()
    for text in (terminal(report, 400), markdown_text(report), csv_text(report), page):
        assert "AWS us-east-2, on demand" in text


def test_a_chip_of_two_devices_is_paid_once() -> None:
    run = record("a", hardware__chip__value="TPU v3", hardware__devices__value=8, results__throughput__value=1000.0)
    (entry,) = compare([run], prices={"TPU-v3": 2.0}).entries
    assert entry.cost.million == pytest.approx(4 * 2.0 * 1e6 / 1000 / 3600)


def test_what_has_no_cost_says_why() -> None:
    small_images = {**H100, "workload__image_size__value": 32}
    runs = [record("plain"), record("emulated", **H100, origin="emulated"), record("small", **small_images)]
    by_id = {entry.record.id: entry for entry in compare(runs).entries}
    plain, emulated, small = (by_id[run.id] for run in runs)
    assert "no price an hour of 'Chip <A> & Co $1' is known; give one with --price" in str(plain.cost.reason)
    assert emulated.cost.reason == "the run was emulated, so its time is not the chip's"
    assert small.cost.million is not None
    assert "images are not 224 px" in str(small.cost.epoch_reason)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ("H100-SXM5", "expected CHIP=USD_AN_HOUR"),
        ("=2", "expected CHIP=USD_AN_HOUR"),
        ("H100-SXM5=-1", "'-1'; expected USD an hour of one chip, above 0"),
        ("H100-SXM5=0", "above 0"),
        ("H100-SXM5=nan", "above 0"),
        ("H100-SXM5=inf", "above 0"),
        ("H100-SXM5=cheap", "'cheap'; expected USD an hour"),
    ],
)
def test_a_price_that_is_none_is_refused(given: str, match: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(match)):
        parse_prices([given])


def test_a_price_twice_or_of_no_chip_here_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'A' twice"):
        parse_prices(["A=1", "A=2"])
    with pytest.raises(ArgumentError, match="'H100-SXM', which no record was run on; did you mean H100-SXM5"):
        compare([record("a", **H100)], prices=parse_prices(["H100-SXM=2"]))


# -- epochs and targets ------------------------------------------------------------------------------------------------

RAN = {
    **GOAL,
    "epoch_time": {"value": 1800.0, "unit": "s"},
    "time_to_target": {"value": 3700.0, "unit": "s"},
    "evaluated_at": {"values": [1850.0, 3700.0], "unit": "s"},
    "accuracies": {"values": [0.5, 0.91], "unit": "fraction"},
}
WHY = "not reached: the best of 2 evaluations was 0.9100 after epoch 2, the target is 0.95"
MISSED = {
    **RAN,
    "target": {"value": 0.95, "unit": "fraction"},
    "outcome": "not reached",
    "epoch_basis": "extrapolated",
    "time_to_target": {"value": None, "unit": "s", "reason": WHY},
    "epochs_to_target": {"value": None, "unit": "epochs", "reason": WHY},
}


def test_time_and_cost_to_an_epoch_and_a_target_stand_in_every_output(tmp_path: Path) -> None:
    reached, missed = record("a", **H100, goal=RAN), record("b", **H100, goal=MISSED)
    report = compare([reached, missed], prices={"H100-SXM5": 2.0})
    page = write_html(report, tmp_path / "page.html").read_text().replace("\u00a0", " ")
    for text in (" ".join(terminal(report, 400).split()), markdown_text(report), page):
        for shown in ("30 min", "1 USD", "61.7 min to 90.00 %, 2 epochs", "2.056 USD", "30 min extrapolated"):
            assert shown in text
        assert "95.00 % not reached, best 91.00 %" in text
    assert WHY in " ".join(terminal(report, 400).split())
    assert WHY in page
    first, second = csv.DictReader(io.StringIO(csv_text(report)))
    assert (first["goal: time_to_target [s]"], second["goal: time_to_target [s]"]) == ("3700.0", "")
    assert (first["goal: outcome"], second["goal: outcome"]) == ("reached", "not reached")
    assert second["goal: epoch basis"] == "extrapolated"


def test_a_target_without_an_evaluation_and_a_cost_without_a_throughput_are_shown() -> None:
    nothing = {"values": [], "unit": "fraction", "reason": "the run ended before its first evaluation"}
    never = {**MISSED, "accuracies": nothing, "evaluated_at": {**nothing, "unit": "s"}}
    run = record("a", **H100, goal=never, results__throughput={"value": None, "unit": "images/s", "reason": "unknown"})
    (entry,) = compare([run], prices={"H100-SXM5": 2.0}).entries
    cells = columns(entry, entry)
    assert cells["time to target"].text == "95.00 % not reached"
    assert cells["cost of an epoch"].text == "1 USD extrapolated"
    assert cells["a million images"].why == "the throughput is unknown or zero"
