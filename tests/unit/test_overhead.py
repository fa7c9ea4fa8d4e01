"""The overhead benchmark: every contender runs, differences are paired, and the record says what was measured where."""

from __future__ import annotations

import importlib.util
import json

import pytest
from rich.console import Console

from accel.bench import overhead
from accel.errors import ArgumentError


# The libraries compared with warn of their own deprecations, which are not this project's to fix.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_contenders_are_timed_in_pairs_and_the_record_names_versions(precision):
    result = overhead.measure(precision, repeats=3, block=2)
    installed = {"accelerate": "accelerate", "fabric": "lightning_fabric"}
    ran = {"accel", *(name for name, module in installed.items() if importlib.util.find_spec(module))}
    ran -= {"fabric"} if precision == "fp16" else set()
    assert set(result.added) == ran
    assert set(result.missing) == {"accel", *installed} - ran
    assert len(result.native) == 3
    assert all(len(differences) == 3 for differences in result.added.values())
    reads = 1.0 if precision == "fp16" else 0.0
    assert result.host_reads["accel"] == reads, "one flag a step under fp16, and nothing otherwise"
    assert result.host_reads["native"] >= reads, "a hand-written loop reads the flag too: the count sees it"
    written = json.loads(json.dumps(overhead.record([result])))
    assert {"accel", "python", "torch"} <= set(written["versions"])
    assert written["results"][0]["precision"] == precision
    assert written["results"][0]["native_median"] > 0
    assert written["results"][0]["host_reads_a_step"] == result.host_reads
    console = Console(width=120)
    with console.capture() as shown:
        console.print(overhead.table([result]))
    for name in ("native PyTorch", "host reads", *ran):
        assert name in shown.get()


def test_interval_holds_the_median_and_narrows_to_a_constant():
    result = overhead.Overhead("fp32", 1, added={"x": [5.0] * 20, "y": [float(i) for i in range(21)]})
    assert result.interval("x") == (5.0, 5.0, 5.0)
    median, low, high = result.interval("y")
    assert low < median == 10.0 < high


@pytest.mark.parametrize("bad", [{"precision": "fp8"}, {"repeats": 0}, {"block": 0}])
def test_bad_values_are_refused(bad):
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        overhead.measure(**{"precision": "fp32", **bad})
