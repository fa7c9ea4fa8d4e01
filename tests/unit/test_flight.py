"""The flight recorder of one rank: what an entry holds, how many are kept, and how they are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from accel._flight import CAPACITY, Recorder, directory
from accel._history import KEPT, History, first_difference
from accel._signature import Signature, parse

SUM = Signature("all_reduce", "sum", (torch.float32, torch.int8), (torch.Size((2, 3)), torch.Size(())))


def test_an_entry_has_the_callers_line_and_both_times() -> None:
    recorder = Recorder(1, 4)
    entry = recorder.open("world", 7, SUM)
    assert recorder.current() is entry
    assert entry.end is None
    entry.close()
    plain = entry.to_plain()
    assert plain["site"].startswith(f"{__file__}:")
    assert (plain["number"], plain["group"], plain["kind"], plain["op"]) == (7, "world", "all_reduce", "sum")
    assert (plain["dtypes"], plain["shapes"]) == (["float32", "int8"], [[2, 3], []])
    assert plain["start"] <= plain["end"]


def test_the_ring_keeps_the_latest_and_finds_the_one_that_is_open() -> None:
    recorder = Recorder(0, 2)
    for number in range(1, CAPACITY + 501):
        entry = recorder.open("world", number, SUM)
        if number != CAPACITY + 450:
            entry.close()
    kept = recorder.entries()
    assert [entry.number for entry in kept] == list(range(501, CAPACITY + 501))
    current = recorder.current()
    assert current is not None
    assert current.number == CAPACITY + 450


def test_a_dump_is_whole_and_replaces_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_FLIGHT_DIR", str(tmp_path / "new" / "folder"))
    recorder = Recorder(3, 4, run="r")
    recorder.groups["world"] = (0, 1, 2, 3)
    recorder.open("world", 1, SUM)
    first = recorder.dump("SIGUSR1", {2: {"beat": 1}})
    path = recorder.dump("a timeout", {}, {"entries": []})
    assert path == first == tmp_path / "new" / "folder" / "rank-00003.json"
    dump = json.loads(path.read_text())
    assert dump["reasons"] == ["SIGUSR1", "a timeout"]
    assert (dump["run"], dump["rank"], dump["world_size"], dump["fabric"]) == ("r", 3, 4, {"entries": []})
    assert len(dump["entries"]) == 1
    assert [file.name for file in path.parent.iterdir()] == ["rank-00003.json"]


def test_the_folder_is_the_variables_or_one_of_this_run() -> None:
    assert directory("r", {"ACCEL_FLIGHT_DIR": "/x/y"}) == Path("/x/y")
    assert directory("r", {}).name == "accel-flight-r"
    assert directory("r", {"ACCEL_FLIGHT_DIR": " "}).name == "accel-flight-r"


def test_signatures_survive_the_store_and_have_a_digest_of_their_own() -> None:
    assert parse(SUM.identity()) == SUM
    assert SUM.digest() == parse(SUM.identity()).digest()
    assert SUM.digest() != SUM._replace(op="max").digest()


def test_histories_differ_from_the_first_swapped_call_on_and_agree_before() -> None:
    mine, theirs = History(), History()
    other = SUM._replace(op="max")
    for number, pair in enumerate([(SUM, SUM), (SUM, other), (other, SUM)], start=1):
        for history, signature in zip((mine, theirs), pair, strict=True):
            history.add(number, signature, signature.digest())
        assert mine.differs(*theirs.position) is (number > 1)
    assert not mine.differs(9, 1)  # not come to it
    found = first_difference({0: mine.latest(), 1: theirs.latest()})
    assert found == (2, {str(SUM): [0], str(other): [1]})
    assert first_difference({0: mine.latest(), 1: mine.latest()}) is None
    for history in (mine, theirs):
        history.reset(3)
    assert mine.position == theirs.position
    assert not mine.differs(2, 1)  # before the reset


def test_a_history_forgets_what_is_old() -> None:
    history = History()
    for number in range(1, KEPT + 2):
        history.add(number, SUM, 5)
    assert history.signature(1) is None
    assert history.signature(2) == SUM
