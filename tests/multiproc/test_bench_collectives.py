"""`accel bench collectives` for real on gloo: rows of every operation, checked values, record, plot, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from accel.bench import _collective_record, bandwidth, collectives
from accel.bench.collectives import Measured, Plan
from accel.errors import ArgumentError, RecordError
from accel.testing.ranks import run_ranks
from accel.testing.training import init

SMALL: dict[str, Any] = {"largest": 4096, "factor": 16, "calls": 2, "repeats": 3, "warmup": 1, "coalescing": 3}


def _command(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "accel", "bench", "collectives", *args],
        env={**os.environ, "ACCEL_BACKEND": "cpu", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip


def test_two_ranks_measure_every_operation_and_write_one_record(tmp_path: Path) -> None:
    options = (
        "--nproc 2 --op all --redop mean --dtype float32 --dtype int16 --max-bytes 4K --factor 16 --calls 2 --blocks 3"
    )
    done = _command(*options.split(), "--coalescing", "5", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.json")
    data = json.loads(path.read_text())
    _collective_record.check(data, str(path))
    assert (data["origin"], data["backend"]["fabric"]) == ("measured", "gloo")
    assert data["hardware"]["world_size_ranks"] == 2
    kinds = {(row["operation"], row["reduction"], row["dtype"]) for row in data["rows"]}
    reducing = {("all_reduce", "mean", "float32"), ("reduce_scatter", "mean", "float32")}
    moving = [name for name in bandwidth.OPERATIONS if name not in collectives.REDUCING]
    emulated = reducing | {(name, None, "int16") for name in moving}  # gloo's mean overflows, and it knows no int16
    assert kinds == reducing | {(name, None, dtype) for name in moving for dtype in ("float32", "int16")}
    refused = {"all_reduce mean int16", "reduce_scatter mean int16"}
    assert set(data["not_run"]) == refused | {f"bare loop of {' '.join(filter(None, kind))}" for kind in emulated}
    assert "no exact result" in data["not_run"]["all_reduce mean int16"]
    for row in data["rows"]:
        assert row["wrong_elements"] == 0, row
        assert row["size_bytes"] == row["count_elements"] * (4 if row["dtype"] == "float32" else 2)
        assert row["algbw_gb_per_s"] == pytest.approx(row["size_bytes"] / row["time_us"] / 1e3, rel=0.01)
        compared = (row["operation"], row["reduction"], row["dtype"]) not in emulated
        assert (row["time_over_bare"] is not None) is (row["bare_time_us"] is not None) is compared
        bounds = row["time_over_bare_low"], row["time_over_bare_high"]
        assert row["verdict"] == (bandwidth.judged(*bounds) if compared else None)
    assert {(fit["operation"], fit["points"]) for fit in data["fits"]} == {(name, 4) for name in bandwidth.OPERATIONS}
    assert data["coalescing"]["tensors"] == 5
    assert path.with_suffix(".svg").read_text().rstrip().endswith("</svg>")
    for shown in ("#wrong", "busbw", "# send_recv", "times faster", f"record: {path}"):
        assert shown in done.stdout


def _wrong(name: str, operation: str) -> list[int]:
    """Wrong elements that the benchmark counts: as the fabric is, and with one spoiled in each result."""
    reduction, size = "sum" if operation in collectives.REDUCING else None, 3072
    with init(name) as s:
        bench = collectives._Bench(s, Plan(**SMALL))
        right = bench.row(operation, reduction, torch.float32, size).wrong
        honest = bench._call

        def spoiled(*arguments: Any) -> Any:
            call = honest(*arguments)

            def run() -> Any:
                done = call()
                (done if operation == "send_recv" else done.result()).view(-1)[-1] += 1
                return done

            return run

        bench._call = spoiled  # type: ignore[method-assign]
        return [right, bench.row(operation, reduction, torch.float32, size).wrong]


def _all_wrong(name: str) -> dict[str, list[int]]:
    return {operation: _wrong(name, operation) for operation in bandwidth.OPERATIONS}


def test_a_wrong_value_is_counted_on_every_rank() -> None:
    for found in run_ranks(_all_wrong, 3, "cpu", timeout=120):
        assert found == {operation: [0, 3] for operation in bandwidth.OPERATIONS}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--nproc", "1"], "--nproc is 1"),
        (["--op", "scan"], "operations has 'scan'"),
        (["--redop", "avg"], "reductions has 'avg'"),
        (["--dtype", "float31"], "dtypes has 'float31'"),
        (["--max-bytes", "many"], "size is 'many'"),
        (["--min-bytes", "8K", "--max-bytes", "4K"], "sizes go from 8192 to 4096"),
        (["--factor", "1"], "factor is 1"),
        (["--calls", "0"], "calls is 0"),
        (["--seconds", "0"], "seconds is 0"),
    ],
)
def test_bad_use_is_one_line_and_starts_no_rank(
    args: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from accel import cli

    monkeypatch.setattr(sys, "argv", ["accel", "bench", "collectives", *args])
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert said in capsys.readouterr().err


def test_one_rank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="between ranks, and this is 1"):
        collectives.run(Plan(**SMALL), tmp_path, "accel bench collectives", bool)


def _too_little_memory(name: str) -> tuple[int, list[str]]:
    with init(name) as s:
        found = Measured()
        stats = s.backend.memory.stats()
        plan = Plan(largest=1 << 60)
        room = collectives._affordable(s, plan, found)
        assert stats.free is not None
        assert room < stats.free
        return room, found.warnings


def test_sizes_beyond_the_memory_are_left_out_and_said() -> None:
    (first, said), (second, _) = run_ranks(_too_little_memory, 2, "cpu", timeout=60)
    assert first == second
    assert "were left out" in said[0]


def test_a_record_that_departs_from_the_schema_is_refused() -> None:
    with pytest.raises(RecordError, match=r"x\.json: does not follow accel-collectives/1: record: 'id' is a required"):
        _collective_record.check({"schema": "accel-collectives/1"}, "x.json")
