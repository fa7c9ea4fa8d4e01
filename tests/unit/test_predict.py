"""Predictions: stated error and its goals, the docs' table, the exchange, the record, and what is refused."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from accel import chips, flops, models, predict, published, records
from accel.compare import compare
from accel.errors import ArgumentError
from accel.predict import _model
from accel.predict._calibrate import Set

DOCS = Path(__file__).parents[2] / "docs" / "predict.md"
ONE_CODE_BASE = (("lambda", "fp16"), ("lambda", "tf32"), ("mxnet", "fp16"))


def test_the_goal_is_met_for_one_code_base_each_chip_left_out() -> None:
    errors = [abs(miss.error) for name, precision in ONE_CODE_BASE for miss in predict.misses(name, precision)]
    assert len(errors) == 24
    assert statistics.median(errors) < 0.12
    assert max(errors) < 0.25


def test_a_chip_left_out_has_no_run_in_its_calibration() -> None:
    fitted = predict.calibrate("lambda", "fp16", without="H100-SXM5")
    assert {run.chip for run in fitted.runs} == {
        "V100-SXM2-16GB",
        "A100-PCIe-40GB",
        "A100-SXM4-80GB",
        "H100-PCIe",
        "H200-SXM",
    }
    assert {run.devices for run in fitted.runs} == {1}
    assert 0 < fitted.parameters.matrix < 1


def test_the_tables_of_the_docs_are_those_that_the_command_prints() -> None:
    text = DOCS.read_text(encoding="utf-8")
    kept = text.partition("<!-- made by: accel predict --errors -->")[2].partition("<!-- end -->")[0]
    assert kept.strip() == predict.error_tables().strip(), "run: accel predict --errors, and put it in docs/predict.md"


def test_a_forecast_says_what_it_rests_on_and_makes_a_record(tmp_path: Path) -> None:
    forecast = predict.predict("resnet50", "h200-sxm", precision="bf16", batch=256, devices=8)
    assert forecast.chip.name == "H200-SXM" and forecast.calibration.set == "lambda"
    assert 0.8 < forecast.throughput / 24479 < 1.2  # Lambda's 8 x H200
    assert sum(forecast.step) == pytest.approx(forecast.step.seconds)
    assert forecast.step.memory > forecast.step.matrix > 0 and forecast.step.exchange > 0
    assert any("among the calibration's own chips" in note for note in forecast.notes)
    made = predict.record(forecast, "accel predict")
    again = records.read(records.write(made, tmp_path / "record.json"))
    assert again == made
    assert again.origin == "predicted" and again.results.throughput.value == forecast.throughput
    assert again.results.peak_allocated.reason and again.workload.seed is None
    assert "at worst" in again.warnings[0] and any("lambdal" in source for source in again.sources)


def test_predictions_from_other_code_bases_are_not_compared() -> None:
    made = [
        predict.record(predict.predict("resnet50", chip), "accel predict") for chip in ("H100-SXM5", "Ascend-910B1")
    ]
    report = compare(made)
    assert [group.key["calibration"] for group in report.groups] == ["lambda", "mlperf"]
    assert "calibration" in {difference.field for difference in report.differences}
    same = compare(predict.record(predict.predict("resnet50", chip), "x") for chip in ("H100-SXM5", "H200-SXM"))
    assert len(same.groups) == 1


def test_a_chip_of_a_vendor_without_a_code_base_gets_the_mixed_calibration_and_its_error() -> None:
    forecast = predict.predict("resnet50", "Ascend-910B3")
    assert forecast.calibration.set == "mlperf" and forecast.worst > 0.25
    assert any("low confidence" in note for note in forecast.notes)


def test_costs_at_any_batch_are_those_of_a_trace_at_that_batch() -> None:
    for precision in ("fp32", "fp16"):
        found = _model.costs("resnet18", precision, 24, 64)
        traced = flops.trace(models.resnet18, batch=24, size=64, precision=precision).operations
        for name in ("flops", "elements", "bytes"):
            assert getattr(found, name).tolist() == [getattr(one, name) for one in traced], (precision, name)


def test_all_reduce_moves_two_n_minus_one_over_n_of_the_buffer() -> None:
    h100 = chips.get("H100-SXM5")
    bandwidth = 480e9  # measured on 8 of them
    expected = _model.START + 14 * _model.HOP + 14 / 8 * 1e9 / bandwidth
    assert _model._all_reduce(h100, 1e9, 8) == pytest.approx(expected)
    assert _model._exposed(h100, 1e8, 1, 0.0) == 0.0
    # Hidden by a long backward except for the last bucket; not at all where backward takes no time.
    assert _model._exposed(h100, 1e8, 8, 10.0) == _model._all_reduce(h100, _model.BUCKET, 8)
    assert _model._exposed(h100, 1e8, 8, 0.0) == _model._all_reduce(h100, 1e8, 8)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"model": "alexnet"}, "model is 'alexnet'; expected one of resnet50"),
        ({"chip": "H100-SXM"}, "did you mean H100-SXM5"),
        ({"batch": 0}, "batch is 0; expected an integer from 1"),
        ({"devices": -1}, "devices is -1"),
        ({"devices": 16}, "devices is 16; the chip table has the links inside a node only"),
        ({"chip": "H100-PCIe", "devices": 2}, "has no link to other chips"),
        ({"precision": "int4"}, "precision='int4'"),
        ({"precision": "fp32"}, "too few to fit three parameters"),
        ({"chip": "TPU-v4", "precision": "tf32"}, "no source gives its dense peak on TPU-v4"),
        ({"chip": "V100-PCIe-16GB", "precision": "fp16"}, "no memory bandwidth in the table"),
        ({"calibration": "mine"}, "calibration is 'mine'; expected one of lambda, mxnet, mlperf"),
    ],
)
def test_what_cannot_be_predicted_is_refused(changes: dict[str, Any], match: str) -> None:
    wanted: dict[str, Any] = {"model": "resnet50", "chip": "H100-SXM5", **changes}
    with pytest.raises(ArgumentError, match=match):
        predict.predict(wanted.pop("model"), wanted.pop("chip"), **wanted)


def test_published_runs_have_sources_and_name_chips_of_the_table() -> None:
    runs = published.runs()
    assert {run.set for run in runs if run.set} == {name for one in predict.sets() for name in Set(*one).names}
    for run in runs:
        assert run.throughput > 0 and run.source and run.software and run.confidence in {"high", "medium", "low"}, run
        assert run.chip is None or run.chip in chips.table(), run
        assert run.set is None or run.chip is not None, run
    with pytest.raises(ArgumentError, match="model is 'vgg'; there are published runs of resnet50 only"):
        published.runs("vgg")
