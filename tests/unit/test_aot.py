"""Compilation ahead of time as far as it needs neither torch_xla nor libtpu: names, texts, the search, records."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from accel import records
from accel.aot import Compiled, Compiler, Program, Shortage, Topology, _topology, largest_batch
from accel.aot._compiler import shortage
from accel.aot._program import as_run
from accel.bench import aot
from accel.bench._options import Options
from accel.bench.aot_table import table
from accel.compare import compare, markdown_text
from accel.errors import ArgumentError, BackendError, CompileError, RecordError

GIB = 2**30
V5E = Topology("v5e:1x1", "TPU v5 lite", 1, 1)

# -- topologies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["v2:2x2", "v3:1x1", "v4:2x2x1", "v5e:16x16", "v5p:2x2x4", "v6e:2x4", "tpu7x:1x1x1"])
def test_a_topology_of_the_right_form_passes(name: str) -> None:
    assert _topology.check(name) == name


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("v5litepod:4", "v5e:2x2"),
        ("v5e", "v5e:1x1"),
        ("V5E:2x2", "v5e:2x2"),
        ("v6:2x4", "v6e:2x4"),
        ("v7x:2x2x1", "tpu7x:2x2x1"),
        ("v5e:2x2x1", "v5e:2x2"),
        ("v4:2x2", "v4:2x2x1"),
        ("v5e:0x1", "v5e:1x1"),  # libtpu 0.0.52 ends with SIGFPE
        ("v5e:1000x1000", "v5e:16x16"),
        ("v5e:2×2", "v5e:2x2"),  # noqa: RUF001 - another sign
        ("", "v5e:1x1"),
    ],
)
def test_a_topology_that_does_not_exist_is_refused_with_the_nearest_one(name: str, near: str) -> None:
    with pytest.raises(ArgumentError, match=f"does not exist: .*did you mean {near!r}"):
        _topology.check(name)


def test_every_suggestion_exists() -> None:
    for family, kind in _topology.FAMILIES.items():
        for shape in kind.common:
            assert _topology.check(f"{family}:{shape}") == _topology.nearest(f"{family}:{shape}")


# -- the compiler's process --------------------------------------------------------------------------------------------


def test_a_python_without_jax_and_libtpu_is_refused_with_what_to_do(monkeypatch: Any) -> None:
    monkeypatch.delenv("ACCEL_AOT_PYTHON", raising=False)
    message = (
        r"has no jax and no jaxlib and no libtpu, .*pip install jax==.* libtpu==.*--aot-python or ACCEL_AOT_PYTHON"
    )
    with pytest.raises(BackendError, match=message), Compiler():
        pass


def test_the_python_that_is_named_by_the_setting_is_the_one_that_is_asked(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setenv("ACCEL_AOT_PYTHON", str(tmp_path / "none"))
    with pytest.raises(BackendError, match=r"ACCEL_AOT_PYTHON=.*none cannot be run \(No such file"), Compiler():
        pass
    with pytest.raises(BackendError, match="--aot-python .*python.* has no jax"), Compiler(sys.executable):
        pass


def test_a_compiler_that_ends_is_named_with_how() -> None:
    false = shutil.which("false")
    assert false is not None
    with (
        pytest.raises(CompileError, match="false ended with exit code 1; the last it said was: nothing"),
        Compiler(false),
    ):
        pass


def test_a_compiler_that_is_not_open_says_so() -> None:
    with pytest.raises(CompileError, match="context manager"):
        Compiler(sys.executable).topology("v5e:1x1")


TEMPORARIES = (
    "JaxRuntimeError: RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom: Ran out of memory on HBM, the total memory "
    "required for HLO temporaries (64.22G) exceeds available HBM (15.75G). HLO module: IrToHlo.282."
)
OF_ALL = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 19.61G of 15.48G "
    "hbm. Exceeded hbm capacity by 4.13G."
)


@pytest.mark.parametrize(
    ("text", "needed", "available"),
    [
        (TEMPORARIES, 64.22 * GIB, 15.75 * GIB),
        (OF_ALL, 19.61 * GIB, 15.48 * GIB),
        ("RESOURCE_EXHAUSTED: (900.00M) exceeds available HBM (15.75G)", 900 * 2**20, 15.75 * GIB),
        ("RESOURCE_EXHAUSTED: in words that nobody has seen", None, None),
    ],
)
def test_an_out_of_memory_is_read(text: str, needed: float | None, available: float | None) -> None:
    found = shortage(text)
    assert found is not None
    assert found.needed == (None if needed is None else pytest.approx(needed, abs=1))
    assert found.available == (None if available is None else pytest.approx(available, abs=1))
    if needed is None or available is None:
        assert found.missing is None
    else:
        assert found.missing == pytest.approx(needed - available, abs=2)
    assert found.message == text


def test_another_error_is_no_out_of_memory() -> None:
    assert shortage("JaxRuntimeError: UNIMPLEMENTED: dynamic shapes") is None


# -- programs ----------------------------------------------------------------------------------------------------------

TEXT = """module @IrToHlo.9 {
  func.func @main(%arg0: tensor<8x3xf32>, %arg1: tensor<4xi64>, %arg2: tensor<8x3xf32>) -> (RESULTS) {
    %0 = stablehlo.add %arg0, %arg2 : tensor<8x3xf32>
    return VALUES : RESULTS
  }
}
"""


def text(values: str, results: str) -> str:
    return TEXT.replace("VALUES", values).replace("RESULTS", results)


def test_outputs_that_hand_an_argument_back_are_left_out_and_updated_arguments_are_given_away() -> None:
    program = as_run(text("%arg1, %0, %arg2", "tensor<4xi64>, tensor<8x3xf32>, tensor<8x3xf32>"))
    assert "-> (tensor<8x3xf32>) {" in program
    assert "    return %0 : tensor<8x3xf32>\n" in program
    assert program.count("jax.buffer_donor") == 1  # one output, so one of the two arguments of its type
    assert "%arg0: tensor<8x3xf32> {jax.buffer_donor = true}, %arg1: tensor<4xi64>, %arg2: tensor<8x3xf32>)" in program


@pytest.mark.parametrize("nothing", ["", text("%arg1", "tensor<4xi64>"), "module @empty {\n}\n"])
def test_a_graph_that_computes_nothing_is_empty(nothing: str) -> None:
    assert as_run(nothing) == ""


# -- the largest batch -------------------------------------------------------------------------------------------------


def attempt_up_to(limit: int) -> Any:
    def attempt(batch: int) -> Compiled:
        short = None if batch <= limit else Shortage(2, 1, "too large")
        return Compiled(V5E, "O0", 0.1, short)

    return attempt


@pytest.mark.parametrize("limit", [1, 2, 7, 31, 32, 33, 255, 256, 300, 1000])
@pytest.mark.parametrize("start", [1, 32, 512])
def test_the_largest_batch_is_found_to_its_granularity(limit: int, start: int) -> None:
    found = largest_batch(attempt_up_to(limit), start)
    assert found.batch is not None
    assert found.too_large is not None
    assert found.batch <= limit < found.too_large
    assert found.too_large - found.batch <= found.granularity <= max(1, limit // 8)
    assert found.compiles == len(set(found.tried)) <= 15


def test_few_compilations_from_a_start_that_is_near() -> None:
    assert list(largest_batch(attempt_up_to(300), 256).tried) == [256, 512, 384, 320, 288]


def test_a_step_that_never_fits_and_one_that_always_does() -> None:
    assert largest_batch(attempt_up_to(0), 8)[:2] == (None, 1)
    assert largest_batch(attempt_up_to(10**9), 24, most=100)[:2] == (100, None)


def test_a_start_that_cannot_be_tried_is_refused() -> None:
    with pytest.raises(ArgumentError, match="start is 0"):
        largest_batch(attempt_up_to(1), 0)


# -- records -----------------------------------------------------------------------------------------------------------


def record(batch: int = 8, topology: Topology = V5E, short: Shortage | None = None) -> records.Record:
    count = records.Figure
    work = records.Workload(
        "resnet18", count(11689512, "parameters"), "synthetic", "synthetic", count(32, "px"), count(batch, "images"),
        count(1, "micro-batches"), count(batch * topology.devices, "images"), "SGD", 0,
    )  # fmt: skip
    program = Program(
        "", topology.devices, "bf16", {"mat_mul_precision": "highest"}, {"torch": "2.9.0", "torch_xla": "2.9.0"}
    )
    figures: dict[str, Any] = {}
    if short is None:
        figures = {"peak": 3 * GIB, "temporary": 2 * GIB, "arguments": GIB, "outputs": GIB, "aliased": GIB, "code": 1}
        figures |= {"flops": 6.14e12, "bytes_accessed": 2.0 * GIB}
    compiled = Compiled(
        topology, "O0", 1.5, short, versions={"jax": "0.10.2", "jaxlib": "0.10.2", "libtpu": "0.0.52"}, **figures
    )
    name = f"{topology.name.replace(':', '-')}-{batch}"
    return aot.record_of(name, datetime(2026, 1, 31, tzinfo=timezone.utc), "accel bench", compiled, program, work)


SHORT = Shortage(round(44.2 * GIB), round(15.75 * GIB), "RESOURCE_EXHAUSTED: (44.20G) exceeds available HBM (15.75G)")


@pytest.mark.parametrize("short", [None, SHORT, Shortage(None, None, "RESOURCE_EXHAUSTED")])
def test_a_prediction_comes_back_as_it_was_written(tmp_path: Path, short: Shortage | None) -> None:
    made = record(short=short)
    assert records.read(records.write(made, tmp_path / "r.json")) == made
    assert made.origin == "predicted"
    assert made.prediction is not None
    assert made.prediction.fits is (short is None)
    assert made.versions.keys() >= {"torch", "torch_xla", "jax", "libtpu"}


def test_a_measured_record_cannot_hold_a_prediction() -> None:
    plain = record().to_plain() | {"origin": "measured"}
    with pytest.raises(RecordError, match="origin: 'predicted' was expected"):
        records.check(plain)


def test_predicted_and_measured_records_stand_in_different_groups_and_say_so() -> None:
    predicted = record()
    plain = json.loads(json.dumps(predicted.to_plain() | {"origin": "measured", "id": "other"}))
    del plain["prediction"]
    report = compare([predicted, records.Record.from_plain(plain)])
    assert [group.origin for group in report.groups] == ["predicted", "measured"]
    assert [one.field for one in report.differences] == ["origin"]
    shown = markdown_text(report)
    assert "3.00 GiB (predicted)" in shown
    assert "6.14 TFLOP (predicted)" in shown


def test_the_table_has_a_row_a_topology_and_a_column_a_batch() -> None:
    v3 = Topology("v3:1x1", "TPU v3", 2, 1)
    shown = table([record(8), record(8, v3), record(64), record(64, v3, SHORT)]).splitlines()
    cell = "peak 3.00 GiB, temporary 2.00 GiB, 6.14 TFLOP, 2.00 GiB moved"
    assert shown[0] == "| topology | devices | batch 8 a device | batch 64 a device |"
    assert shown[2] == f"| v5e:1x1 | 1 x TPU v5 lite | {cell} | {cell} |"
    assert shown[3] == f"| v3:1x1 | 2 x TPU v3 | {cell} | does not fit: 28.45 GiB missing of 44.20 GiB |"
    assert shown[-1] == (
        "resnet18, 32 px, bf16; origin: predicted. Compiled 2026-01-31 with torch 2.9.0, torch_xla 2.9.0, jax 0.10.2, "
        "libtpu 0.0.52, optimization level O0."
    )


@pytest.mark.parametrize("options", [Options(accumulate=2), Options(epochs=1), Options(evaluate=True)])
def test_options_that_need_a_run_are_refused(options: Options) -> None:
    with pytest.raises(ArgumentError, match="--accumulate, --epochs and --evaluate"):
        aot.check(options)


# -- the command -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--fit"], "--fit was given without --aot; name a topology"),
        (["--aot", "v5e:2x2", "--aot-python", sys.executable], "has no jax and no jaxlib and no libtpu"),
        (["--aot", "v5e:2x2", "--precision", "int8"], "precision='int8': expected one of"),
    ],
)
def test_a_wrong_use_ends_with_one_line_and_exit_code_2(words: list[str], message: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "accel", "bench", "resnet50", *words, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
