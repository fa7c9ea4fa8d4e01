from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from accel import compare as comparing
from accel.compare import Report, compare, csv_text, load, markdown_text, print_report, write_html
from accel.errors import ArgumentError, RecordError
from accel.records import Record

BASE: dict[str, Any] = {
    "schema": "accel-record/1",
    "id": "run",
    "time": "2026-01-31T12:00:00Z",
    "command": "accel bench resnet50",
    "benchmark": "resnet50",
    "origin": "measured",
    "backend": {"name": "cpu", "kind": "eager"},
    "hardware": {
        "chip": {"value": "Chip <A> & Co $1"},
        "devices": {"value": 1, "unit": "devices"},
        "world_size": {"value": 1, "unit": "ranks"},
        "hosts": {"value": 1, "unit": "hosts"},
        "details": {"driver": "1.2.3"},
    },
    "versions": {"torch": "2.13.0"},
    "numerics": {"policy": "fp32", "in_force": {"matmul": "ieee"}},
    "workload": {
        "model": "resnet50",
        "parameters": {"value": 23528522, "unit": "parameters"},
        "data": "digits",
        "delivery": "in the loop",
        "image_size": {"value": 32, "unit": "px"},
        "batch_per_device": {"value": 32, "unit": "images"},
        "accumulate": {"value": 1, "unit": "micro-batches"},
        "global_batch": {"value": 32, "unit": "images"},
        "optimizer": "SGD",
        "seed": 0,
    },
    "protocol": {
        "steps": {"value": 2, "unit": "steps"},
        "repeats": {"value": 2, "unit": "repeats"},
        "warmup_steps": {"value": 3, "unit": "steps"},
        "clock": "time.perf_counter",
        "loader_workers": {"value": 0, "unit": "workers"},
        "threads": {"value": 2, "unit": "threads"},
        "threads_source": "cores // local world size",
    },
    "results": {
        "throughput": {"value": 32.0, "unit": "images/s"},
        "throughput_per_device": {"value": 32.0, "unit": "images/s"},
        "throughput_repeats": {"values": [31.0, 33.0], "unit": "images/s"},
        "step_time": {"value": 1.0, "unit": "s"},
        "step_time_p10": {"value": 0.9, "unit": "s"},
        "step_time_p90": {"value": 1.1, "unit": "s"},
        "step_times": {"values": [0.9, 1.0, 1.0, 1.1], "unit": "s"},
        "first_step_time": {"value": 1.5, "unit": "s"},
        "compile_time": {"value": None, "unit": "s", "reason": "nothing was compiled"},
        "loss_curve": {"points": [[1, 2.3], [4, None], [7, 1.25]], "unit": "nats"},
        "accuracy": {"value": 0.9725, "unit": "fraction"},
        "peak_allocated": {"value": None, "unit": "bytes", "reason": "torch counts no CPU tensors"},
        "peak_reserved": {"value": 1073741824, "unit": "bytes"},
        "compiles": {"value": 0, "unit": "graphs"},
        "fallbacks": {"value": None, "unit": "operations", "reason": "not counted"},
    },
    "warnings": [],
}


def plain(name: str, **changes: Any) -> dict[str, Any]:
    """BASE under the id `name`, with values at dotted paths, given as `a__b__c=value`, replaced."""
    data: dict[str, Any] = json.loads(json.dumps({**BASE, "id": name}))
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = data
        for parent in parents:
            place = place[parent]
        place[last] = value
    return data


def record(name: str, **changes: Any) -> Record:
    return Record.from_plain(plain(name, **changes))


def save(folder: Path, name: str, **changes: Any) -> Path:
    path = folder / f"{name}.json"
    path.write_text(json.dumps(plain(name, **changes)))
    return path


def terminal(report: Report, width: int = 100) -> str:
    text = io.StringIO()
    print_report(report, Console(file=text, width=width))
    return text.getvalue()


DIFFERENT: dict[str, dict[str, Any]] = {
    "model": {"workload__model": "resnet18"},
    "batch per device": {"workload__batch_per_device__value": 16, "workload__global_batch__value": 16},
    "image size": {"workload__image_size__value": 64},
    "steps": {"protocol__steps__value": 4, "protocol__repeats__value": 1},
    "precision": {"numerics__policy": "tf32"},
    "data": {"workload__delivery": "synthetic", "workload__data": "synthetic"},
    "accumulate": {"workload__accumulate__value": 2, "workload__global_batch__value": 64},
    "world size": {"hardware__world_size__value": 2, "workload__global_batch__value": 64},
    "optimizer": {"workload__optimizer": "AdamW"},
    "origin": {"origin": "emulated"},
}


@pytest.mark.parametrize("field", DIFFERENT)
def test_runs_that_differ_stand_apart_and_the_difference_is_named(field: str) -> None:
    report = compare([record("one"), record("two", **DIFFERENT[field])])
    assert [len(group.entries) for group in report.groups] == [1, 1]
    assert field in [difference.field for difference in report.differences]
    assert [entry.ratio for entry in report.entries] == [1.0, 1.0]
    for text in (terminal(report), markdown_text(report)):
        assert "comparable" in text
        assert field in text


def test_the_page_shows_groups_apart_and_why(tmp_path: Path) -> None:
    report = compare([record("one"), record("two", **DIFFERENT["precision"])])
    page = Page(write_html(report, tmp_path / "page.html").read_text())
    words = " ".join(" ".join(page.words).split())
    assert "not all comparable" in words
    assert "precision fp32 tf32" in words
    assert page.tags.count("svg") == 6


def test_runs_of_one_workload_share_a_group_and_get_a_ratio() -> None:
    fast = record("two", hardware__chip__value="Chip B", results__throughput__value=80.0)
    (group,) = compare([record("one"), fast]).groups
    assert [entry.ratio for entry in group.entries] == [1.0, 2.5]
    assert group.conditions == []


def test_what_differs_inside_a_group_is_named() -> None:
    other = record(
        "two",
        protocol__threads__value=1,
        protocol__threads_source="OMP_NUM_THREADS",
        numerics__in_force={"matmul": "tf32"},
        versions={"torch": "2.12.0"},
    )
    report = compare([record("one"), other])
    named = {difference.field: difference.values for difference in report.groups[0].conditions}
    assert set(named) == {"threads", "numerics: matmul", "version: torch"}
    assert named["threads"] == {  # T74
        "#1": "2 threads (cores // local world size)",
        "#2": "1 thread (OMP_NUM_THREADS)",
    }
    assert "Differs inside this group" in terminal(report)


def test_no_ratio_without_both_figures_or_across_origins() -> None:
    unknown = {"value": None, "unit": "images/s", "reason": "not published"}
    predicted = {"value": 90.0, "unit": "images/s", "origin": "predicted"}
    report = compare(
        [record("a"), record("b", results__throughput=unknown), record("c", results__throughput=predicted)]
    )
    assert [entry.ratio for entry in report.entries] == [1.0, None, None]
    text = terminal(report, width=160)
    assert "throughput: not published" in text
    assert "pred" in text
    assert [entry.ratio for entry in compare([record("b", results__throughput=unknown), record("a")]).entries] == [
        None,
        None,
    ]


@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 1e7), min_size=1, max_size=6))
def test_ratios_are_throughput_over_the_first(rates: list[float]) -> None:
    report = compare([record(f"r{i}", results__throughput__value=rate) for i, rate in enumerate(rates)])
    ratios = [entry.ratio for entry in report.entries]
    assert ratios == [pytest.approx(rate / rates[0]) for rate in rates]


@settings(deadline=None)
@given(st.lists(st.sampled_from([None, *DIFFERENT]), min_size=1, max_size=8))
def test_every_record_is_in_exactly_one_group_with_its_equals(fields: list[str | None]) -> None:
    runs = [record(f"r{i}", **({} if field is None else DIFFERENT[field])) for i, field in enumerate(fields)]
    report = compare(runs)
    assert sorted(entry.record.id for entry in report.entries) == sorted(run.id for run in runs)
    assert len(report.groups) == len(set(fields))
    assert bool(report.differences) == (len(set(fields)) > 1)


# -- output ----------------------------------------------------------------------------------------------------------


def test_every_figure_shows_its_origin_and_unit() -> None:
    report = compare([record("one", origin="emulated")])
    text = terminal(report)
    for shown in ("32 images/s emul", "1 s emul", "97.25 % emul", "1.00 GiB emul", "1.25 at step 7 emul"):
        assert shown in text
    assert "says nothing of a chip's speed" in text
    assert "32 images/s (emulated)" in markdown_text(report)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_the_table_fits_the_terminal(width: int) -> None:
    report = compare([record(f"r{i}", warnings=["compiled late"]) for i in range(5)])
    assert max(len(line) for line in terminal(report, width).splitlines()) <= width


def test_csv_has_one_row_a_record_with_units_and_origins() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(compare([record("one"), record("two", **DIFFERENT["model"])])))))
    assert [row["group"] for row in rows] == ["A", "B"]
    assert rows[0]["throughput [images/s]"] == "32.0"
    assert rows[0]["throughput origin"] == "measured"
    assert rows[0]["compile_time [s]"] == ""


class Page(HTMLParser):
    """Collects what a page would fetch or run, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [str(value) for name, value in attrs if name in {"src", "href", "xlink:href", "data"}]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_page_needs_nothing_else_and_shows_everything(tmp_path: Path) -> None:
    other = record("two", results__throughput__value=80.0, warnings=["compiled <late>"])
    path = write_html(compare([record("one"), other]), tmp_path / "new" / "page.html", ["bad.json: truncated"])
    text = path.read_text()
    page = Page(text)
    assert [address for address in page.fetched if not address.startswith("#")] == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert "url(http" not in text
    assert "@import" not in text
    assert 'name="viewport"' in text
    assert "prefers-color-scheme: dark" in text
    words = " ".join(page.words)
    for shown in ("Chip <A> & Co $1", "compiled <late>", "2.50x", "measured", "ieee", "2.13.0", "bad.json: truncated"):
        assert shown in words
    assert page.tags.count("svg") == 3
    assert "Glyph" not in text
    assert list(path.parent.iterdir()) == [path]


def test_a_page_without_curves_says_so_and_odd_names_do_no_harm(tmp_path: Path) -> None:
    empty = {"points": [], "unit": "nats", "reason": "published without a curve"}
    run = record("one", results__loss_curve=empty, hardware__chip__value="\u6607\u817e 910B $x^2")
    text = write_html(compare([run]), tmp_path / "page.html").read_text()
    assert Page(text).tags.count("svg") == 2
    assert "not recorded" in text
    assert "published without a curve" in text


def test_a_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file" / "page.html", tmp_path):
        with pytest.raises(ArgumentError, match="cannot write the page"):
            write_html(compare([record("one")]), target)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ArgumentError, match=re.escape("pip install 'accel-torch[report]'")):
        write_html(compare([record("one")]), tmp_path / "page.html")


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_folder_is_read_in_the_order_of_time(tmp_path: Path) -> None:
    save(tmp_path, "b", time="2026-01-01T00:00:00Z")
    later = save(tmp_path, "a", time="2026-01-02T00:00:00Z")
    (tmp_path / "report.html").write_text("not a record, and not .json")
    assert [run.id for run in load([tmp_path]).records.values()] == ["b", "a"]
    assert [run.id for run in load([later, tmp_path, later]).records.values()] == ["a", "b"]


def test_files_that_are_not_records_are_refused_by_name(tmp_path: Path) -> None:
    save(tmp_path, "good")
    (tmp_path / "foreign.json").write_text('{"name": "package"}')
    (tmp_path / "future.json").write_text(json.dumps({**BASE, "schema": "accel-record/9"}))
    (tmp_path / "cut.json").write_text(json.dumps(BASE)[:300])
    with pytest.raises(RecordError, match="3 of 4 .json files") as caught:
        load([tmp_path])
    for name in ("foreign.json", "future.json", "cut.json", "--skip-invalid"):
        assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    loaded = load([tmp_path], skip_invalid=True)
    assert [run.id for run in loaded.records.values()] == ["good"]
    assert len(loaded.skipped) == 3
    with pytest.raises(RecordError, match=r"cut\.json"):
        load([tmp_path / "cut.json"], skip_invalid=True)


def test_no_records_and_no_path_are_refused(tmp_path: Path) -> None:
    for paths, match in (([], "no record given"), ([tmp_path], "no records in"), ([tmp_path / "x"], "no such file")):
        with pytest.raises(ArgumentError, match=match):
            load(paths)


def test_one_run_in_two_files_is_refused(tmp_path: Path) -> None:
    one = save(tmp_path, "one")
    copy = tmp_path / "copy.json"
    copy.write_text(one.read_text())
    with pytest.raises(RecordError, match="hold the same run 'one'"):
        load([one, copy])


def test_comparing_imports_neither_torch_nor_the_report_extra() -> None:
    code = "import sys, accel.compare; print({'torch', 'matplotlib', 'jinja2'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "set()"
    assert comparing.__all__


# -- loss parity -------------------------------------------------------------------------------------------------------

CURVE = [[1, 2.3 * 1.001], [4, 9.0], [7, 1.25 * 0.998], [9, 1.0]]


def test_losses_of_the_same_work_are_compared_across_origins(tmp_path: Path) -> None:
    other = record("two", origin="emulated", backend__name="xla", results__loss_curve__points=CURVE)
    report = compare([record("one"), other])
    (parity,) = report.parity
    assert (parity.entry.tag, parity.baseline.tag) == ("#2", "#1")
    assert parity.points == 2  # a loss that was not finite, and a step that only one run has, are none
    assert (parity.largest, parity.at) == (pytest.approx(0.002), 7)
    assert parity.last == pytest.approx(0.002)
    page = Page(write_html(report, tmp_path / "page.html").read_text())
    for text in (terminal(report, 200), markdown_text(report), " ".join(page.words)):
        assert "Loss parity" in text
        assert "0.20% at step 7" in text
        assert "(xla, emulated)" in text
        assert "(cpu, measured)" in text


@pytest.mark.parametrize("field", sorted(DIFFERENT.keys() - {"origin"}))
def test_losses_of_other_work_are_not_compared(field: str) -> None:
    assert compare([record("one"), record("two", **DIFFERENT[field])]).parity == []


@pytest.mark.parametrize(
    "changes",
    [
        {"workload__seed": 1},
        {"results__loss_curve": {"points": [], "unit": "nats", "reason": "not recorded"}},
        {"results__loss_curve__points": [[4, 1.0], [5, 1.0]]},
    ],
)
def test_losses_without_common_steps_or_seed_are_not_compared(changes: dict[str, Any]) -> None:
    report = compare([record("one"), record("two", **changes)])
    assert report.parity == []
    assert "Loss parity" not in markdown_text(report)


def test_published_figures_stand_apart_with_their_sources(tmp_path: Path) -> None:
    report = comparing.with_published(compare([Record.from_plain(plain("mine"))]))
    assert len(report.groups) == 1 and all(entry.record.origin == "measured" for entry in report.entries)
    assert {"H100-SXM5", "A100-SXM4-80GB", "Ascend-910A", "TPU-v4"} <= {run.chip for run in report.published}
    rows = list(csv.DictReader(io.StringIO(csv_text(report))))
    beside = [row for row in rows if row["group"] == "published"]
    assert len(beside) == len(report.published) == len(rows) - 1
    for row in beside:
        assert row["throughput origin"] == "published" and row["source"] and row["ratio to baseline"] == ""
    markdown = markdown_text(report)
    assert "Published by others, not measured by accel" in markdown and "lambdal/deeplearning-benchmark" in markdown
    console = Console(width=120, file=io.StringIO(), record=True)
    print_report(report, console)
    shown = " ".join(console.export_text().split())
    assert "publ: published by others" in shown and "no ratio leads from one to the other" in shown
    page = write_html(report, tmp_path / "page.html").read_text()
    assert "Show the published runs" in page and "mlcommons/training_results_v3.1" in page


def test_published_figures_of_a_model_without_any_are_refused() -> None:
    other = compare([Record.from_plain(plain("mine", workload__model="resnet18"))])
    with pytest.raises(ArgumentError, match="model is 'resnet18'; there are published runs of resnet50 only"):
        comparing.with_published(other)
