"""The example scripts as a user starts them: one process and two, interrupted and resumed, with bad input."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from accel import _checkpoint
from accel.testing.ranks import RankPool

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TINY_RESNET = ["--data", "synthetic", "--model", "resnet18", "--size", "8", "--batch", "4"]
TINY_IMAGENET = ["--arch", "resnet18", "--size", "40", "--batch", "4", "--lr", "0.01"]
TINY_GPT = ["--layers", "1", "--heads", "2", "--width", "16", "--block", "8", "--batch", "2", "--eval-batches", "2"]


def example(name: str, *arguments: object, ranks: int = 1, limit: float = 240) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own, or under torchrun: what only those show (exit codes, a fresh start)."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
    command = [sys.executable, *launcher, str(EXAMPLES / name), *map(str, arguments)]
    env = {k: v for k, v in os.environ.items() if not k.startswith("ACCEL_")}
    paths = [str(ROOT), str(ROOT / "backends"), env.get("PYTHONPATH", "")]
    env |= {"ACCEL_BACKEND": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit, check=False)


def succeed(name: str, *arguments: object, ranks: int = 1, limit: float = 240) -> str:
    done = example(name, *arguments, ranks=ranks, limit=limit)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def script(name: str, *arguments: str) -> str:
    """Run a script in this process, which has imported torch already; give what it printed."""
    before, sys.argv = sys.argv, [name, *arguments]
    try:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    finally:
        sys.argv = before
    return out.getvalue()


@pytest.fixture(scope="module")
def pair() -> Iterator[RankPool]:
    with RankPool(2, env={"ACCEL_BACKEND": "cpu"}) as pool:
        yield pool


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch, pair: RankPool) -> Callable[..., str]:
    """Like `succeed`, in processes that are there already."""
    monkeypatch.setenv("ACCEL_BACKEND", "cpu")

    def run(name: str, *arguments: object, ranks: int = 1) -> str:
        given = [name, *map(str, arguments)]
        return script(*given) if ranks == 1 else str(pair.run(script, *given, timeout=240)[0])

    return run


@pytest.fixture
def refuse(monkeypatch, capfd) -> Callable[..., str]:
    """Run a script in this process; give the one line of standard error with which it ends with exit code 2."""

    def run(name: str, *arguments: object) -> str:
        monkeypatch.setenv("ACCEL_BACKEND", "cpu")
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        errors = capfd.readouterr().err
        assert ended.value.code == 2, errors
        assert errors.count("\n") == 1, errors
        return errors

    return run


def assert_same(left: Any, right: Any, where: str) -> None:
    """Plain data and tensors are equal, bit for bit."""
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right), where
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_same(left[key], right[key], f"{where}.{key}")
    elif isinstance(left, list | tuple):
        assert len(left) == len(right), where
        for i, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_same(one, other, f"{where}[{i}]")
    else:
        assert left == right, where


def assert_same_checkpoints(left: Path, right: Path) -> None:
    one, other = _checkpoint.read(left), _checkpoint.read(right)
    assert_same(one.objects, other.objects, "objects")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Ten training and three evaluation images in two classes: nothing divides evenly."""
    root = tmp_path_factory.mktemp("images")
    random = np.random.default_rng(0)
    for part, counts in (("train", (5, 5)), ("val", (2, 1))):
        for label, count in zip(("bright", "dark"), counts, strict=True):
            (root / part / label).mkdir(parents=True)
            low, high = (128, 256) if label == "bright" else (0, 128)
            for i in range(count):
                pixels = random.integers(low, high, (24, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / part / label / f"{i}.png")
    return root


@pytest.mark.parametrize("name", ["resnet50.py", "imagenet.py", "nanogpt.py"])
def test_no_example_touches_a_vendor_or_reads_from_the_device(name) -> None:
    names = {"item", "cuda", "npu", "xla", "tpu", "device_count", "synchronize", "to", "cpu", "tolist"}
    tree = ast.parse((EXAMPLES / name).read_text())
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not used & names
    imported = {
        alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    }
    imported |= {
        node.module.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
    }
    assert imported <= {"__future__", "accel", "argparse", "math", "pathlib", "pydoc_data", "rich", "sys", "torch"}


@pytest.mark.parametrize("name", ["resnet50.py", "imagenet.py", "nanogpt.py"])
def test_help_answers(name) -> None:
    assert "--resume DIR" in succeed(name, "--help")


class TestResNet50:
    @pytest.mark.parametrize("ranks", [1, 2])
    def test_a_few_steps_on_real_digits(self, warm, ranks) -> None:
        run = {1: warm, 2: succeed}[ranks]  # under torchrun once
        out = run("resnet50.py", "--data", "digits", "--size", 16, "--model", "resnet18", "--steps", 3, ranks=ranks)
        found = re.fullmatch(r"epoch 0  loss (\d\.\d+)  accuracy (\d\.\d+)  images/s (\d+\.\d)", out.strip())
        assert found, out
        assert 1.5 < float(found[1]) < 6
        correct = float(found[2]) * 360  # each of the 360 held-out digits counts once
        assert correct == pytest.approx(round(correct), abs=0.02)

    def test_resnet50_itself(self, warm) -> None:
        assert "accuracy" in warm("resnet50.py", "--data", "digits", "--size", 8, "--batch", 8, "--steps", 2)

    @pytest.mark.parametrize("precision", ["bf16", "fp16"])
    def test_low_precision_and_accumulation(self, warm, precision) -> None:
        out = warm("resnet50.py", *TINY_RESNET, "--steps", 4, "--accumulate", 2, "--precision", precision)
        assert re.match(r"epoch 0  loss \d\.\d+", out), out

    @pytest.mark.parametrize("ranks", [1, 2])
    def test_an_interrupted_run_goes_on_as_if_it_had_not_stopped(self, warm, tmp_path, ranks) -> None:
        run = {1: succeed, 2: warm}[ranks]  # new processes once
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        run("resnet50.py", *TINY_RESNET, "--steps", 5, "--save", whole, ranks=ranks)
        run("resnet50.py", *TINY_RESNET, "--steps", 2, "--save", parts, ranks=ranks)
        run("resnet50.py", *TINY_RESNET, "--steps", 5, "--resume", parts, "--save", parts, ranks=ranks)
        assert_same_checkpoints(whole, parts)

    def test_a_finished_epoch_is_not_trained_again(self, warm, tmp_path, folder) -> None:
        arguments = ["--data", f"folder:{folder}", "--model", "resnet18", "--size", 8, "--batch", 4]
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        warm("resnet50.py", *arguments, "--epochs", 3, "--save", whole)
        warm("resnet50.py", *arguments, "--epochs", 3, "--steps", 4, "--save", parts)  # two epochs of two batches
        out = warm("resnet50.py", *arguments, "--epochs", 3, "--resume", parts, "--save", parts)
        assert re.findall(r"epoch (\d)", out) == ["2"]
        assert_same_checkpoints(whole, parts)

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (["--batch", "0"], r"--batch: 0 is out of range"),
            (["--batch", "-4"], r"--batch: -4 is out of range"),
            (["--batch", "many"], r"--batch: invalid number value: 'many'"),
            (["--steps", "-1"], r"--steps: -1 is out of range"),
            (["--steps", "0"], r"--steps: 0 is out of range"),
            (["--epochs", "0"], r"--epochs: 0 is out of range"),
            (["--accumulate", "0"], r"--accumulate: 0 is out of range"),
            (["--size", "0"], r"--size: 0 is out of range"),
            (["--lr", "-0.1"], r"--lr: -0.1 is out of range"),
            (["--lr", "nan"], r"--lr: nan is out of range"),
            (["--precision", "fp8"], r"fp8.*bf16"),
            (["--data", "digit"], r"did you mean 'digits'"),
            (["--data", "folder:/no/such/folder"], r"/no/such/folder cannot be read: No such file"),
            (["--batch", "2000"], r"1280 images do not fill a batch of 2000"),
            (["--model", "resnet51"], r"--model: invalid choice: 'resnet51'"),
        ],
    )
    def test_bad_arguments_get_one_line_and_exit_code_2(self, refuse, tmp_path, arguments, line) -> None:
        out = tmp_path / "out"
        assert re.search(line, refuse("resnet50.py", *TINY_RESNET, "--save", out, *arguments))
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize("taken", ["file", "foreign folder", "below a file"])
    def test_an_output_path_that_cannot_be_written_is_refused_before_training(self, refuse, tmp_path, taken) -> None:
        out = tmp_path / "out"
        if taken == "foreign folder":
            out.mkdir()
        held = out / "notes.txt" if taken == "foreign folder" else out
        held.write_text("mine")
        before = sorted(tmp_path.rglob("*"))
        line = refuse("resnet50.py", *TINY_RESNET, "--save", out / "deeper" if taken == "below a file" else out)
        assert str(out) in line
        assert sorted(tmp_path.rglob("*")) == before
        assert held.read_text() == "mine"

    def test_a_bad_argument_ends_the_process_with_exit_code_2(self) -> None:
        done = example("resnet50.py", *TINY_RESNET, "--precision", "fp8")
        assert done.returncode == 2
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1

    def test_absent_checkpoint_gets_one_line(self, tmp_path) -> None:
        done = example("resnet50.py", *TINY_RESNET, "--resume", tmp_path / "nothing")
        assert done.returncode != 0
        assert re.fullmatch(rf"error: .*{re.escape(str(tmp_path))}/nothing.*\n", done.stderr), done.stderr

    @pytest.mark.parametrize("workers", [0, 1])
    def test_a_corrupt_image_is_named_on_one_line(self, refuse, tmp_path, folder, workers) -> None:
        copy = tmp_path / "copy"
        for name in folder.rglob("*.png"):
            target = copy / name.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(name.read_bytes())
        broken = copy / "val" / "dark" / "0.png"
        broken.write_bytes(b"not an image")
        line = refuse(
            "resnet50.py", "--data", f"folder:{copy}", "--model", "resnet18", "--size", 8, "--batch", 4, "--epochs", 1,
            "--workers", workers, "--save", tmp_path / "out",
        )  # fmt: skip
        assert f"error: {broken} cannot be decoded as an image" in line
        assert not (tmp_path / "out").exists()

    def test_two_ranks_end_soon_when_one_finds_a_corrupt_image(self, tmp_path, folder) -> None:
        copy = tmp_path / "copy"
        for name in folder.rglob("*.png"):
            target = copy / name.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(name.read_bytes())
        (copy / "val" / "dark" / "0.png").write_bytes(b"not an image")
        arguments = ["--data", f"folder:{copy}", "--model", "resnet18", "--size", 8, "--batch", 4, "--epochs", 1]
        done = example("resnet50.py", *arguments, ranks=2, limit=120)
        assert done.returncode != 0
        assert "val/dark/0.png cannot be decoded as an image" in done.stderr

    @pytest.mark.prove
    @pytest.mark.timeout(1200)
    def test_the_default_schedule_on_digits_passes_95_percent(self) -> None:
        out = succeed("resnet50.py", "--data", "digits", limit=1200)
        assert float(re.findall(r"accuracy (\d\.\d+)", out)[-1]) > 0.95


class TestImageNet:
    @pytest.mark.parametrize("ranks", [1, 2])
    def test_trains_measures_keeps_the_best_and_resumes(self, warm, tmp_path, folder, ranks) -> None:
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        arguments = [folder, *TINY_IMAGENET, "--epochs", 3, "--lr-every", 1, "--print-every", 1]
        out = warm("imagenet.py", *arguments, "--save", whole, ranks=ranks)
        assert re.search(r"epoch 0 \[1/\d\] .* top1 \d+\.\d\d%  top5 100\.00%", out), out
        shares = {float(found) for found in re.findall(r"validation .* top1 (\d+\.\d\d)%", out)}
        assert len(re.findall("validation", out)) == 3
        assert shares <= {0.0, 33.33, 66.67, 100.0}  # three images, each once

        warm("imagenet.py", *arguments, "--save", parts, "--stop-after", 1, ranks=ranks)
        warm("imagenet.py", *arguments, "--save", parts, "--resume", parts / "last", ranks=ranks)
        assert_same_checkpoints(whole / "last", parts / "last")
        assert_same_checkpoints(whole / "best", parts / "best")
        last = _checkpoint.read(whole / "last").objects
        assert last["epoch"] == 3
        assert last["optimizer"]["param_groups"][0]["lr"] == pytest.approx(0.01 * 0.1**3)
        assert 100 * last["best"] == pytest.approx(max(shares), abs=0.01)

    def test_evaluate_only_repeats_the_figures_of_training(self, warm, tmp_path, folder) -> None:
        trained = warm("imagenet.py", folder, *TINY_IMAGENET, "--epochs", 1, "--save", tmp_path / "out")
        measured = warm("imagenet.py", folder, *TINY_IMAGENET, "--resume", tmp_path / "out" / "last", "--evaluate")
        assert measured.strip() == trained.strip().splitlines()[-1]

    @pytest.mark.parametrize(
        ("arguments", "line"),
        [
            (["/no/such/folder"], "/no/such/folder cannot be read"),
            ([EXAMPLES], "has no class folders"),
            ([EXAMPLES, "--batch", "0"], "--batch: '0' is not a whole number"),
            ([], "required: folder"),
        ],
    )
    def test_bad_arguments_get_one_line_and_exit_code_2(self, refuse, arguments, line) -> None:
        assert line in refuse("imagenet.py", *arguments)


class TestNanoGPT:
    @pytest.mark.parametrize("ranks", [1, 2])
    def test_forty_micro_batches_a_window_with_evaluation_and_resume(self, warm, tmp_path, ranks) -> None:
        whole, parts = tmp_path / "whole", tmp_path / "parts"
        arguments = [*TINY_GPT, "--accumulate", 40, "--eval-every", 2]
        out = warm("nanogpt.py", *arguments, "--iterations", 4, "--save", whole, ranks=ranks)
        assert re.findall(r"iteration (\d+)  train \d\.\d+  val \d\.\d+", out) == ["2", "4"], out
        warm("nanogpt.py", *arguments, "--iterations", 2, "--save", parts, ranks=ranks)
        warm("nanogpt.py", *arguments, "--iterations", 4, "--resume", parts, "--save", parts, ranks=ranks)
        assert_same_checkpoints(whole, parts)

    def test_learns(self, warm) -> None:
        arguments = ["--layers", 1, "--width", 32, "--batch", 4, "--block", 16, "--accumulate", 2, "--lr", 0.01]
        out = warm("nanogpt.py", *arguments, "--iterations", 60, "--eval-every", 30)
        losses = [float(loss) for loss in re.findall(r"val (\d\.\d+)", out)]
        assert losses[-1] < 3.5  # log(103) = 4.63 is what a guess among the text's characters costs
        assert losses[-1] < losses[0]

    def test_bad_input_gets_one_line_and_exit_code_2(self, refuse, tmp_path) -> None:
        short = tmp_path / "short.txt"
        short.write_text("too short")
        binary = tmp_path / "binary"
        binary.write_bytes(b"\xff\xfe\xfd")
        for arguments, line in (
            (["--text", short], "the text has 9 characters"),
            (["--text", binary], "cannot be read as UTF-8"),
            (["--text", tmp_path / "absent"], "No such file"),
            (["--accumulate", 0], "--accumulate: '0'"),
            (["--width", 10, "--heads", 3], "--width 10 does not divide among 3 heads"),
        ):
            assert line in refuse("nanogpt.py", *arguments)
