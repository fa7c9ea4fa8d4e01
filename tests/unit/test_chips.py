"""The chip table: dense peaks, sources, recognition of what drivers report, and utilisation."""

from __future__ import annotations

import subprocess
import sys

import pytest

from accel import chips
from accel.chips._table import CONFIDENCES
from accel.errors import ArgumentError


# T25: dense peaks in TFLOP/s of one chip; None where no source gives one.
@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("V100-SXM2-16GB", "fp16", 125),
        ("V100-SXM2-16GB", "tf32", None),
        ("V100-SXM2-16GB", "bf16", None),
        ("A100-SXM4-80GB", "bf16", 312),
        ("A100-SXM4-80GB", "tf32", 156),
        ("A100-SXM4-80GB", "fp32", 19.5),
        ("A100-SXM4-80GB", "fp8", None),
        ("H100-SXM5", "bf16", 989.4),
        ("H100-SXM5", "fp32", 66.9),
        ("H100-PCIe", "bf16", 756),
        ("H100-NVL", "bf16", 835),
        ("H200-SXM", "fp16", 989.4),
        ("Ascend-910A", "fp16", 256),
        ("Ascend-910B1", "fp16", 378.88),
        ("Ascend-910B2", "fp16", 353.89),
        ("Ascend-910B3", "fp16", 294.912),
        ("Ascend-910B4", "fp16", 270),
        ("Ascend-910B3", "fp32", None),
        ("TPU-v4", "bf16", 275),
        ("TPU-v5e", "bf16", 197),
        ("TPU-v5p", "bf16", 459),
        ("TPU-v5p", "fp32", None),
    ],
)
def test_dense_peaks(name: str, dtype: str, peak: float | None) -> None:
    found = chips.get(name).peak(dtype)
    assert found is None if peak is None else found == pytest.approx(peak * 1e12)


def test_a_peak_with_sparsity_is_never_the_dense_one() -> None:
    for chip in chips.table().values():
        for dtype, sparse in chip.sparse.items():
            dense = chip.dense.get(dtype)
            assert dense is None or sparse.value == pytest.approx(2 * dense.value, rel=0.01), (chip.name, dtype)


def test_every_figure_has_a_unit_a_source_and_a_confidence() -> None:
    for chip in chips.table().values():
        figures = [*chip.dense.values(), *chip.sparse.values(), *chip.other.values()]
        figures += [item for items in chip.alternatives.values() for item in items]
        figures += [item for item in (chip.memory, chip.bandwidth, chip.link, chip.power, chip.year) if item]
        assert len(figures) > 2, chip.name
        for figure in figures:
            assert figure.plain > 0 and figure.source and all(figure.source), (chip.name, figure)
            assert figure.confidence in CONFIDENCES, (chip.name, figure)
        for price in chip.prices:
            assert price.value > 0 and price.place and price.source and price.unit in {"USD/chip-h", "USD/chip"}
            assert price.date or price.date_note, (chip.name, price)
        assert bool(chip.alternatives) == bool(chip.choice), chip.name


def test_a_device_that_is_half_a_chip_has_half_its_peak() -> None:
    assert chips.get("TPU-v3").peak("bf16") == pytest.approx(61.5e12)


@pytest.mark.parametrize(
    ("reported", "gib", "name"),
    [
        ("Tesla V100-SXM2-16GB", 15.78, "V100-SXM2-16GB"),
        ("Tesla V100-PCIE-32GB", 31.75, "V100-PCIe-32GB"),
        ("A100-SXM4-40GB", 39.59, "A100-SXM4-40GB"),
        ("NVIDIA A100-SXM4-80GB", 79.15, "A100-SXM4-80GB"),
        ("NVIDIA A100-PCIE-40GB", 39.39, "A100-PCIe-40GB"),
        ("NVIDIA A100 80GB PCIe", 79.1, "A100-PCIe-80GB"),
        ("NVIDIA H100 80GB HBM3", 79.1, "H100-SXM5"),
        ("NVIDIA H100 PCIe", 79.1, "H100-PCIe"),
        ("NVIDIA H100 NVL", 93.1, "H100-NVL"),
        ("NVIDIA H200", 139.7, "H200-SXM"),
        ("Ascend910A", None, "Ascend-910A"),
        ("Ascend910ProA", None, "Ascend-910ProA"),
        ("Ascend910B1", 61.0, "Ascend-910B1"),
        ("Ascend910B2", 61.0, "Ascend-910B2"),
        ("Ascend910B3", 64.0, "Ascend-910B3"),
        ("Ascend910B4", 29.5, "Ascend-910B4"),
        ("TPU v2", None, "TPU-v2"),
        ("TPU v3", 15.5, "TPU-v3"),
        ("TPU v4", 31.8, "TPU-v4"),
        ("TPU v5 lite", None, "TPU-v5e"),
        ("TPU v5", None, "TPU-v5p"),
        ("TPU v6 lite", None, "TPU-v6e"),
        ("TPU7x", None, "TPU-7x"),
        ("v5e:2x2", None, "TPU-v5e"),
        ("v4:2x2x1", None, "TPU-v4"),
        ("v5litepod-8", None, "TPU-v5e"),
        ("v6e-256", None, "TPU-v6e"),
        ("tpu7x:2x2x1", None, "TPU-7x"),
    ],
)
def test_what_drivers_report_is_recognised(reported: str, gib: float | None, name: str) -> None:
    found = chips.recognise(reported, None if gib is None else int(gib * 2**30))
    assert found.reason is None and found.chip is chips.get(name)


@pytest.mark.parametrize(
    ("reported", "gib", "reason"),
    [
        ("Tesla V100S-PCIE-32GB", 31.7, "not in the chip table"),
        ("Tesla V100-SXM3-32GB", 31.7, "not in the chip table"),
        ("NVIDIA A800-SXM4-80GB", 79.1, "not in the chip table"),
        ("NVIDIA H800", 79.1, "not in the chip table"),
        ("NVIDIA H20", 95.0, "not in the chip table"),
        ("NVIDIA H200 NVL", 139.7, "not in the chip table"),
        ("NVIDIA GH200 480GB", 94.5, "not in the chip table"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9.8, "slice of a GPU"),
        ("NVIDIA H100 80GB HBM3", 63.4, "reports 63.4 GiB of memory, but H100-SXM5 has 80 a device"),
        ("NVIDIA A100-SXM4-80GB", 19.6, "a part of one"),
        ("Ascend910B", None, "does not say which bin"),
        ("Ascend910B2C", 61.0, "did you mean Ascend-910B2"),
        ("Ascend910_9392", 61.0, "not in the chip table"),
        ("TPU v4 lite", None, "not in the chip table"),
        ("v9:2x2", None, "not in the chip table"),
        ("v4", None, "not in the chip table"),
        ("AMD EPYC 7B13", None, "not in the chip table"),
        ("XLA on CPU", None, "not in the chip table"),
        ("", None, "names the device"),
        (None, None, "names the device"),
    ],
)
def test_an_unknown_device_is_nobody_with_a_reason(reported: str | None, gib: float | None, reason: str) -> None:
    found = chips.recognise(reported, None if gib is None else int(gib * 2**30))
    assert found.chip is None and found.reason is not None and reason in found.reason


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("H100", "H100-SXM5 or H100-PCIe or H100-NVL"),
        ("H100-SXM", "H100-SXM5"),
        ("NVIDIA A100-SXM4-81GB", "A100-SXM4-80GB"),
        ("Ascend910B2", "Ascend-910B2"),
        ("tpuv5", "TPU-v5e or TPU-v5p"),
    ],
)
def test_a_near_miss_is_suggested(name: str, near: str) -> None:
    with pytest.raises(ArgumentError, match=f"did you mean.*{near}"):
        chips.get(name)


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    with pytest.raises(ArgumentError, match=r"chip 'abacus' is not in the table; `accel chips` lists all"):
        chips.get("abacus")


# T25
def test_utilisation_is_of_the_dense_peak_of_the_arithmetic_in_force() -> None:
    h100 = chips.get("h100-sxm5")
    assert chips.utilisation(98.94e12, h100, "bf16") == (pytest.approx(0.1), pytest.approx(989.4e12), None, None)
    assert chips.utilisation(49.47e12, h100, "tf32").mfu == pytest.approx(0.1)
    assert chips.utilisation(6.69e12, h100, "fp32").mfu == pytest.approx(0.1)


def test_utilisation_above_the_peak_is_flagged_with_its_denominator() -> None:
    found = chips.utilisation(400e12, chips.get("A100-SXM4-80GB"), "bf16")
    assert found.mfu == pytest.approx(400 / 312)
    assert found.warning is not None and "128%" in found.warning and "312 TFLOP/s" in found.warning


def test_utilisation_is_unknown_with_a_reason() -> None:
    v100 = chips.get("V100-SXM2-16GB")
    assert chips.utilisation(1e12, None, "bf16", "a CPU")[:3] == (None, None, "a CPU")
    assert "dense bf16 peak of V100" in str(chips.utilisation(1e12, v100, "bf16").reason)
    assert "does not say" in str(chips.utilisation(1e12, v100, None).reason)


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ArgumentError, match=r"flops is .*expected"):
        chips.utilisation(rate, None, None)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "accel", "chips", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_command_lists_all_chips_and_shows_one_with_sources() -> None:
    listed = run()
    assert listed.returncode == 0 and all(name in listed.stdout for name in chips.table())
    shown = run("Ascend-910B3")
    assert shown.returncode == 0
    for text in ("294.912 TFLOP/s (high confidence)", "313 TFLOP/s", "choice: ", "torchtitan-npu", "price: no source"):
        assert text in shown.stdout


def test_the_command_suggests_a_near_miss_and_exits_with_2() -> None:
    done = run("H100-SXM")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr == "accel: chip 'H100-SXM' is not in the table; did you mean H100-SXM5; `accel chips` lists all\n"
    )
