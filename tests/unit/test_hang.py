"""`accel doctor hang`: what it says of the flight records of a job, and of a folder that holds something else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accel import _hang
from accel.cli import app
from accel.errors import ArgumentError, RecordError


def _entry(number: int, call: str = "all_reduce(op=sum)", end: float | None = 2.0, **more: Any) -> dict[str, Any]:
    entry = {"sequence": number, "group": "world", "number": number, "call": call, "site": f"train.py:{number}"}
    return {**entry, "start": 1.0, "end": end, "failed": "", **more}


def _dump(folder: Path, rank: int, entries: list[dict[str, Any]], world: int = 2, **more: Any) -> None:
    everybody = list(range(world))
    dump = {"schema": 1, "run": "a", "rank": rank, "world_size": world, "time": 11.0, "groups": {"world": everybody}}
    dump |= {"peers": {}, "fabric": None, "entries": entries, **more}
    (folder / f"rank-{rank:05d}.json").write_text(json.dumps(dump))


def _said(folder: Path) -> list[str]:
    return _hang.explain(_hang.read(folder))


def test_the_rank_that_did_not_come_is_behind_and_the_others_wait(tmp_path: Path) -> None:
    _dump(tmp_path, 0, [_entry(1), _entry(2, end=None)], world=3)
    _dump(tmp_path, 1, [_entry(1)], world=3)
    _dump(tmp_path, 2, [_entry(1), _entry(2, end=9.0, failed="CollectiveTimeout")], world=3)
    said = _said(tmp_path)
    assert said[0] == "run a: 3 of 3 ranks left a flight record"
    assert said[1].startswith(
        "rank 1 is behind: it did not come to all_reduce(op=sum) number 2 of group 'world' at train.py:2. "
        "ranks 0, 2 wait for it."
    )
    assert "rank 1 was in all_reduce(op=sum) number 1 of group 'world' at train.py:1, which it had finished" in said[1]
    assert "rank 0 was in all_reduce(op=sum) number 2 of group 'world' at train.py:2, for 10.0 s" in said


def test_a_rank_without_a_record_is_described_by_what_others_last_saw(tmp_path: Path) -> None:
    state = {"call": "barrier", "group": "barrier", "number": 4, "site": "train.py:9", "open": False}
    peers = {"1": {"beat": 7, "entry": state, "quiet": 6.25}}
    _dump(tmp_path, 0, [_entry(3, end=None)], peers=peers)
    said = _said(tmp_path)
    assert said[0] == "run a: 1 of 2 ranks left a flight record"
    assert said[1].startswith("rank 1 is behind: it did not come to all_reduce(op=sum) number 3")
    assert "rank 1 left no flight record: dead or frozen; others last saw it in barrier number 4" in said[1]
    assert "silent for 6.2 s" in said[1]


def test_ranks_in_different_calls_of_one_number_are_told_apart(tmp_path: Path) -> None:
    _dump(tmp_path, 0, [_entry(5, "all_reduce(op=sum)", None)])
    _dump(tmp_path, 1, [_entry(5, "gradients(op=mean)", None)])
    assert _said(tmp_path)[1] == (
        "ranks differ in number 5 of group 'world': rank 0: all_reduce(op=sum); rank 1: gradients(op=mean)"
    )


def test_ranks_that_are_all_in_one_call_point_at_the_fabric(tmp_path: Path) -> None:
    for rank in (0, 1):
        _dump(tmp_path, rank, [_entry(5, end=None)])
    assert "none is behind" in _said(tmp_path)[1]


def test_a_job_in_which_nobody_waited_says_so(tmp_path: Path) -> None:
    for rank in (0, 1):
        _dump(tmp_path, rank, [_entry(5)])
    assert _said(tmp_path)[1] == "no rank waited for another"


def test_what_nccl_has_not_finished_is_merged(tmp_path: Path) -> None:
    # Fields of torch's ProcessGroupNCCL flight recorder, version 2.10 (torch 2.9 to 2.13).
    over = {"profiling_name": "nccl:broadcast", "collective_seq_id": 7, "state": "completed", "input_sizes": [[1]]}
    open_ = {"profiling_name": "nccl:all_reduce", "collective_seq_id": 8, "state": "started", "input_sizes": [[3, 4]]}
    _dump(tmp_path, 0, [_entry(5, end=None)], fabric={"version": "2.10", "entries": [over, open_]})
    _dump(tmp_path, 1, [_entry(5, end=None)], fabric={"unreadable": "no such call"})
    said = _said(tmp_path)
    assert "rank 0: the fabric has nccl:all_reduce number 8 started, sizes [[3, 4]]" in said
    assert not any("nccl:broadcast" in line for line in said)
    assert "rank 1: the fabric's own record could not be read: no such call" in said


def test_a_truncated_record_is_left_out_and_named(tmp_path: Path) -> None:
    _dump(tmp_path, 0, [_entry(2, end=None)])
    _dump(tmp_path, 1, [_entry(1)])
    whole = (tmp_path / "rank-00001.json").read_text()
    (tmp_path / "rank-00001.json").write_text(whole[: len(whole) // 2])
    said = _said(tmp_path)
    assert any(line.startswith("rank-00001.json is truncated or not JSON") and "left out" in line for line in said)
    assert said[1].startswith("rank 1 is behind")


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "truncated or not JSON"),
        ("[1, 2]", "not a flight record"),
        ('{"schema": 1, "run": "a"}', "not a flight record"),
        ("\x80\x81", "truncated|not a flight"),
    ],
)
def test_a_folder_of_unreadable_records_is_refused(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "rank-00000.json").write_bytes(text.encode("latin1"))
    with pytest.raises(RecordError, match=match):
        _hang.read(tmp_path)


@pytest.mark.parametrize(("field", "value"), [("schema", 2), ("world_size", -3)])
def test_a_record_of_another_schema_or_an_impossible_rank_is_refused(tmp_path: Path, field: str, value: int) -> None:
    _dump(tmp_path, 0, [], **{field: value})
    with pytest.raises(RecordError, match=str(value)):
        _hang.read(tmp_path)


def test_records_of_two_runs_are_refused_with_both_named(tmp_path: Path) -> None:
    _dump(tmp_path, 0, [_entry(1)])
    _dump(tmp_path, 1, [_entry(1)], run="b")
    with pytest.raises(RecordError, match=r"2 runs \(run a: rank 0; run b: rank 1\)"):
        _hang.read(tmp_path)


def test_an_absent_and_an_empty_folder_are_refused_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="is not a folder"):
        _hang.read(tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match="holds no flight record"):
        _hang.read(tmp_path)
    assert CliRunner().invoke(app, ["doctor", "hang", str(tmp_path)]).exit_code != 0
