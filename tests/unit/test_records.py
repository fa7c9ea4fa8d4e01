from __future__ import annotations

import dataclasses
import json
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from accel import records
from accel.errors import ArgumentError, RecordError
from accel.records import Figure, Record, Series

PLAIN: dict[str, Any] = {
    "schema": "accel-record/1",
    "id": "resnet50-cpu-fp32-1",
    "time": "2026-01-31T12:00:00Z",
    "command": "accel bench resnet50",
    "benchmark": "resnet50",
    "origin": "measured",
    "backend": {"name": "cpu", "kind": "eager"},
    "hardware": {
        "chip": {"value": None, "reason": "the operating system does not say"},
        "devices": {"value": 2, "unit": "devices"},
        "world_size": {"value": 2, "unit": "ranks"},
        "hosts": {"value": 1, "unit": "hosts"},
        "details": {},
    },
    "versions": {"torch": "2.13.0"},
    "numerics": {"policy": "fp32", "in_force": {"float32_matmul_precision": "highest"}},
    "workload": {
        "model": "resnet50",
        "parameters": {"value": 23528522, "unit": "parameters"},
        "data": "digits",
        "delivery": "in the loop",
        "image_size": {"value": 32, "unit": "px"},
        "batch_per_device": {"value": 16, "unit": "images"},
        "accumulate": {"value": 1, "unit": "micro-batches"},
        "global_batch": {"value": 32, "unit": "images"},
        "optimizer": "SGD",
        "seed": 0,
    },
    "protocol": {
        "steps": {"value": 2, "unit": "steps"},
        "repeats": {"value": 2, "unit": "repeats"},
        "warmup_steps": {"value": 1, "unit": "steps"},
        "clock": "time.perf_counter",
        "loader_workers": {"value": 0, "unit": "workers"},
        "threads": {"value": 1, "unit": "threads"},
        "threads_source": "cores // local world size",
    },
    "results": {
        "throughput": {"value": 32.0, "unit": "images/s"},
        "throughput_per_device": {"value": 16.0, "unit": "images/s"},
        "throughput_repeats": {"values": [31.0, 33.0], "unit": "images/s"},
        "step_time": {"value": 1.0, "unit": "s"},
        "step_time_p10": {"value": 0.9, "unit": "s"},
        "step_time_p90": {"value": 1.1, "unit": "s"},
        "step_times": {"values": [0.9, 1.0, 1.0, 1.1], "unit": "s"},
        "first_step_time": {"value": 1.5, "unit": "s"},
        "compile_time": {"value": None, "unit": "s", "reason": "nothing was compiled"},
        "loss_curve": {"points": [[1, 2.3], [4, None]], "unit": "nats"},
        "accuracy": {"value": 0.97, "unit": "fraction"},
        "peak_allocated": {"value": None, "unit": "bytes", "origin": "predicted", "reason": "not given"},
        "peak_reserved": {"value": 812345678, "unit": "bytes"},
        "compiles": {"value": 2, "unit": "graphs"},
        "fallbacks": {"value": None, "unit": "operations", "reason": "not counted"},
        "data_time": {"value": 0.01, "unit": "s"},
        "forward_time": {"value": 0.3, "unit": "s"},
        "backward_time": {"value": 0.6, "unit": "s"},
        "update_time": {"value": 0.1, "unit": "s"},
        "reduce_time": {"value": None, "unit": "s", "reason": "one rank reduces nothing"},
        "energy": {"value": 0.25, "unit": "J/image"},
        "backward_alone_time": {"value": 0.5, "unit": "s"},
        "reduce_overlap": {"value": None, "unit": "fraction", "reason": "one rank reduces nothing"},
        "data_share": {"value": 0.01, "unit": "fraction"},
    },
    "warnings": ["loss was not finite at step 4"],
}


GOAL: dict[str, Any] = {
    "clock": "from before the first data access",
    "epoch_images": {"value": 1024, "unit": "images"},
    "epoch_time": {"value": 30.5, "unit": "s"},
    "epoch_basis": "measured",
    "target": {"value": 0.9, "unit": "fraction"},
    "outcome": "reached",
    "time_to_target": {"value": 64.0, "unit": "s"},
    "epochs_to_target": {"value": 2, "unit": "epochs"},
    "evaluated_images": {"value": 100, "unit": "images"},
    "evaluated_at": {"values": [32.0, 64.0, 96.0], "unit": "s"},
    "accuracies": {"values": [0.5, 0.91, 0.89], "unit": "fraction"},
}
TRIAL: dict[str, Any] = {
    "workers": {"value": 2, "unit": "workers"},
    "pinned": False,
    "throughput": {"value": 40.0, "unit": "images/s"},
    "data_share": {"value": 0.1, "unit": "fraction"},
}
INPUT: dict[str, Any] = {
    "trials": [TRIAL],
    "workers": {"value": 2, "unit": "workers"},
    "pinned": None,
    "advice": "use --workers 2",
}
DISTURBANCE: dict[str, Any] = {
    "samples": {"value": 6, "unit": "samples"},
    "throttled": {"value": 0.5, "unit": "fraction"},
    "throttle_causes": ["heat"],
    "other_processes": {"value": None, "unit": "processes", "reason": "not told"},
    "other_load": {"value": 0.4, "unit": "cores"},
    "cpu_wait": {"value": 0.0, "unit": "fraction"},
}
PARTS = {"goal": GOAL, "input": INPUT, "disturbance": DISTURBANCE}


def altered(**changes: Any) -> dict[str, Any]:
    """PLAIN with values at dotted paths, given as `a__b__c=value`, replaced."""
    data: dict[str, Any] = json.loads(json.dumps(PLAIN))
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = data
        for name in parents:
            place = place[name]
        place[last] = value
    return data


def test_schema_is_valid_and_names_its_version() -> None:
    Draft202012Validator.check_schema(records.schema())
    assert records.schema()["properties"]["schema"]["const"] == records.SCHEMA


def test_typed_fields_and_schema_properties_are_the_same() -> None:
    def compare(cls: Any, node: dict[str, Any]) -> None:
        assert {field.name for field in dataclasses.fields(cls)} == set(node["properties"])
        for name, hint in typing.get_type_hints(cls).items():
            part = node["properties"][name]
            kind = next((one for one in typing.get_args(hint) if dataclasses.is_dataclass(one)), hint)
            if dataclasses.is_dataclass(kind) and "$ref" not in part:
                compare(kind, part.get("items", part))

    compare(Record, records.schema())


def test_record_survives_the_file(tmp_path: Path) -> None:
    record = Record.from_plain(PLAIN)
    path = records.write(record, tmp_path / "new" / "run.json")
    assert records.read(path) == record
    assert record.to_plain() == PLAIN
    assert [entry.name for entry in path.parent.iterdir()] == ["run.json"]


def test_the_optional_parts_survive_the_file(tmp_path: Path) -> None:
    record = Record.from_plain({**PLAIN, **PARTS})
    assert record.goal is not None
    assert record.input is not None
    assert record.input.trials[0].workers == Figure(2, "workers")
    assert records.read(records.write(record, tmp_path / "run.json")) == record
    assert record.to_plain() == {**PLAIN, **PARTS}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"evaluated_at": {"values": [32.0, 31.0, 96.0], "unit": "s"}}, "31.0 s after 32.0 s: the clock went back"),
        ({"evaluated_at": {"values": [32.0], "unit": "s"}}, "1 values and goal.accuracies 3"),
        ({"accuracies": {"values": [0.5, 1.5, 0.9], "unit": "fraction"}}, "1.5, which is more than all images"),
        ({"target": {"value": 0.95, "unit": "fraction"}}, "is 'reached', but by its target and accuracies it is 'not"),
        ({"outcome": "no target"}, "'no target', but by its target and accuracies it is 'reached'"),
        ({"time_to_target": {"value": 32.0, "unit": "s"}}, "time_to_target is 32.0, but the evaluation .* 64.0"),
        ({"outcome": "soon"}, r"goal\.outcome"),
        ({"epoch_basis": "guessed"}, r"goal\.epoch_basis"),
    ],
)
def test_a_goal_that_contradicts_itself_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**PLAIN, "goal": {**GOAL, **changes}}))
    with pytest.raises(RecordError, match=said) as caught:
        records.read(path)
    assert str(caught.value).startswith(str(path))


def test_a_record_from_before_some_figures_were_taken_is_read(tmp_path: Path) -> None:
    required = records.schema()["properties"]["results"]["required"]
    results = {name: part for name, part in PLAIN["results"].items() if name in required}
    path = tmp_path / "old.json"
    path.write_text(json.dumps({**PLAIN, "results": results}))
    found = records.read(path).results
    assert found.compiles.value is None
    for figure in (found.compiles, found.fallbacks, found.data_time, found.energy):
        assert "a version that did not take it" in figure.words()


def test_origin_of_a_figure_is_its_own_or_the_records() -> None:
    record = Record.from_plain(PLAIN)
    assert record.origin_of(record.results.throughput) == "measured"
    assert record.origin_of(record.results.peak_allocated) == "predicted"


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        (Figure(1, "micro-batches"), "1 micro-batch"),
        (Figure(2, "micro-batches"), "2 micro-batches"),
        (Figure(1, "ranks"), "1 rank"),
        (Figure(1, "s"), "1 s"),
        (Figure(1, "images/s"), "1 images/s"),
        (Figure(23528522, "parameters"), "23,528,522 parameters"),
        (Figure(None, "bytes", reason="not given"), "unknown (not given)"),
    ],
)
def test_a_figure_in_words_has_its_unit(figure: Figure, words: str) -> None:  # T26
    assert figure.words() == words


numbers = st.one_of(st.integers(0, 10**18), st.floats(0, 1e300))
texts = st.text(st.characters(codec="utf-8"), min_size=1)


@st.composite
def record_parts(draw: st.DrawFn) -> Record:
    base = Record.from_plain(PLAIN)
    batch, accumulate, world = draw(st.tuples(*[st.integers(1, 10**4)] * 3))
    steps, repeats = draw(st.tuples(st.integers(1, 5), st.integers(1, 4)))
    times = tuple(draw(st.lists(st.floats(1e-9, 1e9), min_size=steps * repeats, max_size=steps * repeats)))
    marks = sorted(draw(st.tuples(*[st.floats(1e-9, 1e9)] * 3)))
    points = tuple(enumerate(draw(st.lists(st.none() | st.floats(-1e9, 1e9), min_size=1, max_size=9)), start=1))
    known = draw(st.booleans())
    return dataclasses.replace(
        base,
        command=draw(texts),
        origin=draw(st.sampled_from(records.ORIGINS)),
        warnings=tuple(draw(st.lists(texts, max_size=3))),
        versions=draw(st.dictionaries(texts, texts, max_size=3)),
        hardware=dataclasses.replace(base.hardware, world_size=Figure(world, "ranks")),
        workload=dataclasses.replace(
            base.workload,
            batch_per_device=Figure(batch, "images"),
            accumulate=Figure(accumulate, "micro-batches"),
            global_batch=Figure(batch * accumulate * world, "images"),
        ),
        protocol=dataclasses.replace(base.protocol, steps=Figure(steps, "steps"), repeats=Figure(repeats, "repeats")),
        results=dataclasses.replace(
            base.results,
            throughput=Figure(draw(numbers), "images/s")
            if known
            else Figure(None, "images/s", draw(st.none() | st.sampled_from(records.ORIGINS)), draw(texts)),
            step_time_p10=Figure(marks[0], "s"),
            step_time=Figure(marks[1], "s"),
            step_time_p90=Figure(marks[2], "s"),
            step_times=Series(times, "s"),
            throughput_repeats=Series((), "images/s", reason="drawn without"),
            loss_curve=records.Curve(points, "nats"),
        ),
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(record_parts())
def test_any_valid_record_round_trips(tmp_path: Path, record: Record) -> None:
    assert records.read(records.write(record, tmp_path / "run.json")) == record


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_figures_that_are_not_finite_or_negative_are_refused(tmp_path: Path, value: float) -> None:
    record = Record.from_plain(altered(results__throughput__value=value))
    with pytest.raises(RecordError, match=r"results\.throughput"):
        records.write(record, tmp_path / "run.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"results__accuracy": {"value": None, "unit": "fraction"}}, "reason"),
        ({"results__accuracy": {"value": 0.5, "unit": "fraction", "reason": "none"}}, r"results\.accuracy"),
        ({"results__throughput__unit": "images"}, "images/s"),
        ({"origin": "guessed"}, "origin.*guessed"),
        ({"numerics__policy": "fp8"}, r"numerics\.policy"),
        ({"workload__global_batch__value": 33}, "global_batch is 33, but 16 images x 1 micro-batches x 2 ranks is 32"),
        ({"protocol__repeats__value": 3}, "step_times has 4 values, but 3 repeats of 2 steps"),
        ({"results__step_time__value": 2.0}, "not between its p10 and p90"),
        ({"results__throughput__value": 5000.0}, "throughput is 5000.0, which is not between its repeats"),
        ({"hardware__devices__value": 0}, "hardware.devices is 0"),
        ({"results__loss_curve__points": [[0, 1.0]]}, "loss_curve"),
        ({"results__loss_curve__points": [[2, 1.0], [2, 0.9]]}, "loss_curve has step 2 after step 2"),
        ({"protocol__steps__value": 0}, r"protocol\.steps is 0, so nothing was timed.*--steps"),
        ({"protocol__repeats__value": 0}, r"protocol\.repeats is 0, so nothing was timed.*--repeats"),
        ({"results__step_times__values": [0.9, 1.0, -1.0, 1.1]}, r"results\.step_times\.values\.2: -1"),
        ({"id": "../../etc"}, "id"),
        ({"extra": 1}, "extra"),
        ({"schema": "accel-record/2"}, "newer than.*upgrade accel-torch"),
        ({"schema": "accel-record/x"}, "not an accel record"),
        ({"schema": 7}, "not an accel record"),
    ],
)
def test_a_file_that_breaks_the_schema_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], match: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(altered(**changes)))
    with pytest.raises(RecordError, match=rf"^.*bad\.json: .*{match}") as caught:
        records.read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (json.dumps(PLAIN)[:-40], "truncated or not JSON"),
        ("", "empty file"),
        ("loss,1\n", "not JSON"),
        ("[1, 2]", "not an accel record"),
        ('{"name": "package"}', "not an accel record"),
        (json.dumps(PLAIN).replace("32.0", "NaN"), "NaN is not JSON"),
        (json.dumps(PLAIN).replace("32.0", "1e999"), r"results\.throughput"),
        ("[" * 200_000, "not JSON"),
    ],
)
def test_a_foreign_file_is_refused_by_name(tmp_path: Path, content: str, match: str) -> None:
    path = tmp_path / "foreign.json"
    path.write_text(content)
    with pytest.raises(RecordError, match=rf"foreign\.json: .*{match}") as caught:
        records.read(path)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_unreadable_and_binary_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"absent\.json: cannot be read"):
        records.read(tmp_path / "absent.json")
    (tmp_path / "image.json").write_bytes(b"\x89PNG\xff\x00")
    with pytest.raises(RecordError, match=r"image\.json: not a text file"):
        records.read(tmp_path / "image.json")


def test_a_destination_that_cannot_be_written_is_found_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.json").mkdir()
    for out in (tmp_path / "file" / "below", tmp_path / "file" / "run.json", tmp_path / "folder.json", "/proc/results"):
        with pytest.raises(ArgumentError, match="cannot write the record"):
            records.destination(out, "run")
    assert records.destination(tmp_path / "new", "run") == tmp_path / "new" / "run.json"
    assert records.destination(tmp_path / "other" / "mine.json", "run") == tmp_path / "other" / "mine.json"
    assert list((tmp_path / "new").iterdir()) == []


def test_writing_fails_whole_and_leaves_the_old_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = records.write(Record.from_plain(PLAIN), tmp_path / "run.json")
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(ArgumentError, match="No space left on device"):
        records.write(Record.from_plain(altered(warnings=[])), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
