"""What a report concludes: intervals, whether a difference is more than noise, cautions, scaling, loss parity."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel.bench._timing import RankTiming, summarize
from accel.compare import Report, compare, csv_text, load, markdown_text, write_html
from accel.compare._parity import allowed
from accel.compare._uncertainty import BETWEEN, Unknown
from accel.errors import ArgumentError
from accel.records import Record
from tests.unit.test_compare import record, terminal

IMAGES = 32


def timed(name: str, rows: np.ndarray, **changes: Any) -> Record:
    """A record of a run whose steps took `rows` seconds, one row a repeat, summarized as `accel bench` does."""
    repeats, steps = rows.shape
    found = summarize([RankTiming(rows.tolist(), [[IMAGES] * steps] * repeats, [rows[0, 0]], [], [])])
    return record(
        name,
        protocol__steps__value=steps,
        protocol__repeats__value=repeats,
        results__throughput__value=found.throughput,
        results__throughput_repeats__values=found.throughput_repeats,
        results__step_times__values=found.step_times,
        results__step_time__value=found.step_time,
        results__step_time_p10__value=found.step_time_p10,
        results__step_time_p90__value=found.step_time_p90,
        **changes,
    )


def noisy(seed: int, mean: float = 0.1, repeats: int = 5, steps: int = 20, drift: float = 0.02) -> np.ndarray:
    """Step times with noise from step to step and from repeat to repeat."""
    generator = np.random.default_rng(seed)
    level = mean * (1 + drift * generator.standard_normal((repeats, 1)))
    return level * np.exp(0.05 * generator.standard_normal((repeats, steps)))


# -- noise -------------------------------------------------------------------------------------------------------------


def test_the_same_run_twice_differs_by_chance_about_as_often_as_promised() -> None:
    apart = 0
    for seed in range(40):
        _, other = compare([timed("a", noisy(2 * seed)), timed("b", noisy(2 * seed + 1))]).entries
        apart += other.verdict != "no significant difference"
    assert apart <= 6  # 2 are expected of 40 at 95 %; more than 6 come up once in 300


def test_a_delay_of_a_tenth_is_found_with_its_interval() -> None:
    for seed in range(10):
        report = compare([timed("a", noisy(seed)), timed("b", noisy(seed + 100, mean=0.11))])
        other = report.entries[1]
        assert other.verdict == "slower"
        assert not isinstance(other.ratio_interval, Unknown)
        low, high = other.ratio_interval
        assert 0.8 < low < high < 1
    for text in (terminal(report, 160), markdown_text(report)):
        assert f"slower ({low:.3g}x to {high:.3g}x)" in text
    (_, row) = csv.DictReader(io.StringIO(csv_text(report)))
    assert row["more than noise"] == "slower"
    assert float(row["ratio to baseline low, 95 %"]) == low


def test_an_interval_holds_the_true_rate_about_as_often_as_promised() -> None:
    inside = 0
    for seed in range(60):
        (entry,) = compare([timed("a", noisy(seed, repeats=3))]).entries
        assert not isinstance(entry.interval, Unknown)
        inside += entry.interval.holds(IMAGES / (0.1 * np.exp(0.05**2 / 2)))
    assert inside >= 52


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.lists(st.floats(1e-4, 10), min_size=4, max_size=4), min_size=2, max_size=5),
    st.floats(1e-3, 1e3),
)
def test_intervals_hold_their_figure_and_scale_with_the_clock(rows: list[list[float]], factor: float) -> None:
    times = np.array(rows)
    (entry, scaled) = compare([timed("a", times), timed("b", times * factor)]).entries
    for one in (entry, scaled):
        assert not isinstance(one.interval, Unknown)
        assert one.interval.low <= one.interval.high
    assert scaled.interval.low == pytest.approx(entry.interval.low / factor)  # type: ignore[union-attr]
    assert scaled.ratio == pytest.approx(1 / factor)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"protocol__repeats__value": 1, "protocol__steps__value": 4}, "one repeat does not show"),
        ({"results__step_times__values": [1.0, 1.0]}, "does not hold the times of all its steps"),
        ({"results__step_times__values": [0.0, 1.0, 1.0, 1.0]}, "a step took no time"),
    ],
)
def test_without_the_noise_there_is_no_verdict_but_a_reason(changes: dict[str, Any], why: str) -> None:
    report = compare([record("a", **changes), record("b", **changes)])
    assert [entry.verdict for entry in report.entries] == [None, None]
    assert all(isinstance(entry.interval, Unknown) and why in entry.interval.reason for entry in report.entries)
    assert why in " ".join(terminal(report, 400).split())


def test_the_load_of_others_and_what_differs_between_runs_widen_the_interval() -> None:
    def width(share: float) -> float:
        disturbance = {**DISTURBED, "cpu_wait": {"value": share, "unit": "fraction"}}
        (entry,) = compare([timed("a", np.full((5, 4), 0.1), disturbance=disturbance)]).entries
        assert not isinstance(entry.interval, Unknown)
        return float(np.log(entry.interval.high / entry.interval.low))

    assert width(0.0) == pytest.approx(2 * 1.96 * BETWEEN, rel=0.1)  # steps that do not vary at all
    assert width(0.2) == pytest.approx(2 * np.hypot(1.96 * BETWEEN, -np.log(0.8)), rel=0.1)
    assert np.isfinite(width(1.0))


# -- baseline ----------------------------------------------------------------------------------------------------------


def test_the_chosen_run_is_the_baseline_of_its_group() -> None:
    runs = [record("first"), record("second", results__throughput__value=64.0)]
    report = compare(runs, baseline="sec")
    assert [(entry.record.id, entry.ratio) for entry in report.entries] == [("second", 1.0), ("first", 0.5)]
    for wrong, count in (("", 2), ("third", 0)):
        with pytest.raises(ArgumentError, match=re.escape(f"--baseline is {wrong!r}, which is the start of {count}")):
            compare(runs, baseline=wrong)


# -- cautions ----------------------------------------------------------------------------------------------------------


def cautions(*changes: dict[str, Any]) -> tuple[str, ...]:
    return compare([record(f"r{i}", **change) for i, change in enumerate(changes)]).entries[-1].cautions


def test_a_fair_match_has_no_caution() -> None:
    assert cautions({}, {}) == ()


@pytest.mark.parametrize(
    ("base", "other", "said"),
    [
        (
            {"numerics__in_force": {"arithmetic": "fp32"}},
            {"numerics__in_force": {"arithmetic": "tf32"}},
            "matrix products in tf32, the baseline's fp32",
        ),
        (
            {"numerics__in_force": {"execution": "eager"}},
            {"numerics__in_force": {"execution": "torch.compile"}},
            "the step ran as torch.compile",
        ),
        ({}, {"versions": {"torch": "2.9.1"}}, "older software: torch 2.9.1, the baseline's 2.13.0"),
        ({}, {"protocol__loader_workers__value": 4}, "4 workers load data, the baseline's 0 workers"),
        ({}, {"protocol__threads__value": 1}, "1 thread a rank, the baseline 2 threads"),
    ],
)
def test_what_makes_a_match_unfair_is_named(base: dict[str, Any], other: dict[str, Any], said: str) -> None:
    assert any(said in line for line in cautions(base, other))


def test_signs_of_a_shared_or_throttled_machine_are_named() -> None:
    assert "3.0 times as long" in cautions({"results__step_time_p90__value": 2.7})[0]
    falling = {"results__throughput_repeats__values": [33.0, 32.0, 30.0]}
    assert "each repeat was slower than the one before, 9% in all" in cautions(falling)[0]
    assert cautions({"results__throughput_repeats__values": [33.0, 30.0, 31.0]}) == ()


DISTURBED = {
    "samples": {"value": 4, "unit": "samples"},
    "throttled": {"value": 0.0, "unit": "fraction"},
    "throttle_causes": [],
    "other_processes": {"value": 0, "unit": "processes"},
    "other_load": {"value": 0.05, "unit": "cores"},
    "cpu_wait": {"value": 0.0, "unit": "fraction"},
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        (
            {"throttled": {"value": 0.5, "unit": "fraction"}, "throttle_causes": ["heat", "power limit"]},
            "clocks were held down for heat (in 50% of the samples)",
        ),
        ({"throttled": {"value": 1.0, "unit": "fraction"}, "throttle_causes": ["power limit"]}, None),
        ({"other_processes": {"value": 1, "unit": "processes"}}, "1 process besides its ranks computed on a device"),
        ({"other_load": {"value": 0.4, "unit": "cores"}}, None),  # another core bore it
        (
            {"other_load": {"value": 0.4, "unit": "cores"}, "cpu_wait": {"value": 0.2, "unit": "fraction"}},
            "busy during the timed steps; for 20% of the time a thread of the run stood ready and had no core",
        ),
        (
            {
                "other_load": {"value": 0.4, "unit": "cores"},
                "cpu_wait": {"value": None, "unit": "fraction", "reason": "no statistics"},
            },
            "other processes kept 0.4 of a host's cores busy during the timed steps",
        ),
        (
            {
                "throttled": {"value": None, "unit": "fraction", "reason": "not told"},
                "other_processes": {"value": None, "unit": "processes", "reason": "not told"},
                "other_load": {"value": None, "unit": "cores", "reason": "no /proc"},
                "cpu_wait": {"value": None, "unit": "fraction", "reason": "no /proc"},
            },
            None,
        ),
    ],
)
def test_what_devices_and_hosts_said_of_a_run_is_a_caution(changes: dict[str, Any], said: str | None) -> None:
    found = cautions({}, {"disturbance": {**DISTURBED, **changes}})
    assert found == () if said is None else said in found[0]


def test_load_that_is_little_beside_the_cores_of_a_run_is_no_caution() -> None:
    unknown = {"value": None, "unit": "fraction", "reason": "no statistics"}
    busy = {"disturbance": {**DISTURBED, "other_load": {"value": 1.0, "unit": "cores"}, "cpu_wait": unknown}}
    assert cautions(busy, busy) != ()
    many = {**busy, "protocol__threads__value": 16}
    assert cautions(many, many) == ()


def test_a_run_that_waited_for_data_is_told_what_finds_better() -> None:
    (line,) = cautions({}, {"results__data_share": {"value": 0.35, "unit": "fraction"}})
    assert "waited for data 35% of the time" in line
    assert "--tune-input" in line


def test_advice_and_disturbance_stand_in_the_page_and_the_csv(tmp_path: Path) -> None:
    advice = {
        "trials": [
            {
                "workers": {"value": 2, "unit": "workers"},
                "pinned": True,
                "throughput": {"value": 40.0, "unit": "images/s"},
                "data_share": {"value": 0.1, "unit": "fraction"},
            }
        ],
        "workers": {"value": 2, "unit": "workers"},
        "pinned": True,
        "advice": "use --workers 2 --pin",
    }
    report = compare([record("a", input=advice, disturbance=DISTURBED)])
    page = write_html(report, tmp_path / "page.html").read_text()
    assert "2 workers, pinned: 40.0 images/s" in page
    assert "use --workers 2 --pin" in page
    assert "0.05 cores" in page
    (row,) = csv.DictReader(io.StringIO(csv_text(report)))
    assert (row["input: advice"], row["disturbance: other_load [cores]"]) == ("use --workers 2 --pin", "0.05")


# -- scaling -----------------------------------------------------------------------------------------------------------


def on(devices: int, rate: float, **changes: Any) -> Record:
    return record(
        f"{devices}-{rate}",
        hardware__devices__value=devices,
        hardware__world_size__value=devices,
        workload__global_batch__value=32 * devices,
        workload__optimizer=f"SGD, peak LR {0.032 * devices}",
        results__throughput__value=rate,
        **changes,
    )


def test_scaling_is_against_the_fewest_devices_of_the_same_software(tmp_path: Path) -> None:
    report = compare([on(4, 96.0), on(1, 32.0), on(2, 60.0), on(8, 1.0, versions={"torch": "2.9.0"})])
    rows = [(row.devices, row.times, row.efficiency) for row in report.scaling]
    assert rows == [(1, 1.0, 1.0), (2, 1.875, 0.9375), (4, 3.0, 0.75)]
    page = write_html(report, tmp_path / "page.html").read_text()
    for text in (terminal(report, 160), markdown_text(report), page):
        assert "Scaling" in text
        assert "93.8%" in text
    assert compare([on(2, 60.0), on(2, 61.0)]).scaling == []


# -- loss parity -------------------------------------------------------------------------------------------------------


def parity(report: Report) -> str:
    (one,) = report.parity
    return one.verdict


@pytest.mark.parametrize(
    ("points", "verdict"),
    [
        ([[1, 2.3], [7, 1.25]], "equal to the last bit"),
        ([[1, 2.3 * (1 + 2**-22)], [7, 1.26]], "agree"),
        ([[1, 2.301], [7, 1.25]], "other mathematics or other data: apart from step 1 on"),
        ([[1, 2.3], [7, 0.5]], "apart from step 7 on"),
    ],
)
def test_losses_part_by_rounding_or_by_more(points: list[list[float]], verdict: str) -> None:
    assert verdict in parity(compare([record("a"), record("b", origin="emulated", results__loss_curve__points=points)]))


def test_coarser_arithmetic_may_part_sooner() -> None:
    changes = {"results__loss_curve__points": [[1, 2.3 * 1.01], [7, 1.25]]}
    numerics = {"numerics__in_force": {"arithmetic": "bf16"}}
    assert "agree" in parity(compare([record("a", **numerics), record("b", **changes, **numerics)]))
    assert "from step 1" in parity(compare([record("a"), record("b", **changes)]))
    assert allowed(1, 2**-24) < allowed(2, 2**-24) < allowed(3, 2**-24) <= allowed(1000, 2**-24)


def test_files_keep_their_verdict(tmp_path: Path) -> None:
    """From the file as the bench writes it, so that nothing the verdict needs is lost on the way."""
    from accel import records

    for seed in (1, 2):
        records.write(timed(f"run{seed}", noisy(seed)), tmp_path / f"{seed}.json")
    report = compare(load([tmp_path]).records.values())
    assert report.entries[1].verdict is not None
