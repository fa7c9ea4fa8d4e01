"""Parity: planted faults are named with layer and step, runs without one agree, other work is not compared."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn

import accel
from accel import parity
from accel.cli import app
from accel.errors import AccelError, ArgumentError, ParityError, UnsupportedError
from accel.parity import _builtin
from accel.parity._sketch import WIDTH, Sketcher
from accel.session import Session
from accel.testing.parity import FAULTS, LATE_FAULTS, other_kernels, record

WHERE = {**FAULTS, **LATE_FAULTS}


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Traces without a fault, by precision."""
    folder = tmp_path_factory.mktemp("good")
    return {precision: record(folder / precision, "cpu", precision=precision) for precision in ("fp32", "bf16")}


@pytest.mark.parametrize("fault", WHERE)
def test_planted_fault_is_named_with_step_direction_and_layer(good, tmp_path, fault):
    precision = "bf16" if fault == "dtype" else "fp32"
    found = parity.compare(good[precision], record(tmp_path / "bad", "cpu", fault=fault, precision=precision))
    assert found.finding is not None
    assert (found.finding.step, found.finding.direction, found.finding.layer) == WHERE[fault]
    assert found.finding.layer in found.verdict


@pytest.mark.parametrize("seed", [11, 12])
def test_nothing_is_reported_where_only_the_order_of_sums_differs(tmp_path, seed):
    mine = record(tmp_path / "a", "cpu", seed=seed)
    with other_kernels():
        other = record(tmp_path / "b", "cpu", seed=seed)
    found = parity.compare(mine, other)
    assert found.agree, found.verdict
    assert 0 < max(found.curves["forward"].differences) < 1e-4
    assert found.blind_from is None


def test_sketch_estimates_differences_and_is_linear():
    sketcher, generator = Sketcher(torch.device("cpu")), torch.Generator().manual_seed(0)
    for shape in ((1,), (7,), (1000,), (64, 3, 7, 7), (5, 0)):
        a, b = (torch.randn(shape, generator=generator) for _ in range(2))
        rows = [sketcher.row(t) for t in (a, b, a.double() - b.double())]
        assert rows[0].shape == (WIDTH,)
        torch.testing.assert_close((rows[0] - rows[1])[5:], rows[2][5:], rtol=1e-9, atol=1e-9)
        estimate = math.sqrt(float((rows[2][5:] ** 2).mean()))
        true = float((a.double() - b.double()).norm())
        assert true / 2 <= estimate <= 2 * true
        assert float(rows[0][0]) == pytest.approx(float(a.double().norm()))
    assert float(sketcher.row(torch.tensor([1.0, math.nan, math.inf]))[4]) == 2


def test_a_sketch_does_not_depend_on_the_memory_layout():
    t = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    sketcher = Sketcher(torch.device("cpu"))
    assert torch.equal(sketcher.row(t), sketcher.row(t.to(memory_format=torch.channels_last)))


def test_a_session_that_is_not_recorded_has_no_hooks(good):
    with accel.init(backend="cpu") as session:
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        called, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
        assert type(session) is Session
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in called.modules())
        assert not optimizer._optimizer_step_pre_hooks


def test_recording_changes_no_number_of_the_training(tmp_path):
    kept = []

    def weights():
        with accel.init(backend="cpu", accumulate=2, clip_norm=0.1) as s:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
            called, opt = s.prepare(model, torch.optim.Adam(model.parameters(), lr=0.1))
            for (x,) in s.batches([(torch.ones(2, 3) * i,) for i in range(4)]):
                s.backward(called(x).square().mean())
                s.step(opt)
            kept.extend(p.detach().clone() for p in model.parameters())

    weights()
    parity.record(weights, out=tmp_path / "t", steps=2)
    trace = parity.read(tmp_path / "t")
    assert len(kept) == len(trace.states) == 4  # a recorded run ends at its last step, before it keeps its weights
    for tensor, row in zip(kept, trace.ranks[0]["state"][-1], strict=True):
        assert row[0] == pytest.approx(float(tensor.double().norm()), rel=1e-12)
    once = ["0", "1", "2", "(output)"]
    assert [layer.name for layer in trace.layers] == once + [f"{name}#2" for name in once]


SCRIPT = """
import sys, torch, accel
from torch import nn
print("argument", sys.argv[1])
with accel.init(backend="cpu", seed=0) as s:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    model, opt = s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    data = [(torch.randn(4, 4), torch.randint(2, (4,))) for _ in range(int(sys.argv[1]))]
    for x, y in s.batches(data):
        loss = nn.functional.cross_entropy(model(x), y) * {factor}
        s.backward(loss)
        s.step(opt)
"""


def cli(*words):
    command = [sys.executable, "-m", "accel", "parity", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    return done.returncode, done.stdout, done.stderr


def test_the_command_records_any_script_and_compares(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT.format(factor=1)))
    code, out, err = cli("record", "--steps", 3, "--out", tmp_path / "a", script, 9)
    assert (code, out) == (0, "argument 9\n"), err
    assert "trace of 3 step(s)" in err
    script.write_text(textwrap.dedent(SCRIPT.format(factor=1.5)))
    parity.record(script, ["9"], out=tmp_path / "b", steps=3)
    code, out, _ = cli("compare", tmp_path / "a", tmp_path / "b", "--plot", tmp_path / "plot.svg")
    assert code == 1
    assert "they part at step 1, forward, (loss)" in out
    assert (tmp_path / "plot.svg").read_text().startswith("<?xml")
    same = parity.compare(parity.read(tmp_path / "a"), parity.read(tmp_path / "a"))
    assert "they agree within the tolerance of fp32" in same.verdict


def test_seed_of_the_command_takes_the_place_of_the_scripts(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT.format(factor=1)))
    for seed in (5, 6):
        argv = sys.argv
        parity.record(script, ["2"], out=tmp_path / str(seed), steps=2, seed=seed)
        assert sys.argv is argv
    traces = [parity.read(tmp_path / seed) for seed in ("5", "6")]
    assert [trace.run["seed"] for trace in traces] == [5, 6]
    with pytest.raises(ParityError, match="no sample in common"):
        parity.compare(*traces)


@pytest.mark.parametrize("model", ["resnet18", "vit", "lm"])
def test_builtin_models_are_recorded_small(tmp_path, model):
    work = _builtin.Work(model, steps=2, batch=2, backend="cpu", accumulate=2 if model == "lm" else 1)
    assert parity.record(lambda: _builtin.train(work), out=tmp_path / "t", steps=2, seed=0) == 2
    trace = parity.read(tmp_path / "t")
    assert len(trace.layers) > 10
    assert sum(f.stat().st_size for f in (tmp_path / "t").iterdir()) < 2_000_000
    assert parity.compare(trace, trace).agree


def changed(source, target, **fields):
    """A copy of a trace with other fields in its index."""
    shutil.copytree(source.path, target)
    index = json.loads((target / "trace.json").read_text())
    for name, value in fields.items():
        if value is None:
            del index[name]
        else:
            index[name] = value
    (target / "trace.json").write_text(json.dumps(index))
    return target


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"schema": 99}, "schema 99"),
        ({"steps": None}, "lacks steps"),
        ({"steps": 5}, "shape"),
        ({"layers": [{"name": "x"}]}, "damaged"),
        ({"world_size": 2}, "rank1"),
    ],
)
def test_unusable_traces_are_refused(good, tmp_path, fields, said):
    with pytest.raises(ParityError, match=said):
        parity.read(changed(good["fp32"], tmp_path / "t", **fields))


def test_truncated_and_absent_traces_are_refused(good, tmp_path):
    with pytest.raises(ParityError, match=r"has no trace\.json"):
        parity.read(tmp_path)
    target = changed(good["fp32"], tmp_path / "t")
    arrays = target / "rank0.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:1000])
    with pytest.raises(ParityError, match="cannot be read"):
        parity.read(target)
    (target / "trace.json").write_text('{"schema": 1,')
    with pytest.raises(ParityError, match="cannot be read"):
        parity.read(target)


def test_traces_of_other_work_are_not_compared(good, tmp_path):
    mine = good["fp32"]
    with pytest.raises(ParityError, match=r"6 step\(s\).*3.*--steps 3"):
        parity.compare(mine, record(tmp_path / "short", "cpu", steps=3))
    with pytest.raises(ParityError, match="--steps 7"):
        parity.compare(mine, mine, steps=7)
    work = _builtin.Work("lm", steps=1, batch=2, backend="cpu")
    parity.record(lambda: _builtin.train(work), out=tmp_path / "lm", steps=1)
    with pytest.raises(ParityError, match="model"):
        parity.compare(mine, parity.read(tmp_path / "lm"))
    with pytest.raises(ParityError, match="no sample in common"):
        parity.compare(mine, record(tmp_path / "other", "cpu", seed=99))
    target = changed(mine, tmp_path / "renamed")
    index = json.loads((target / "trace.json").read_text())
    index["layers"][2]["name"] = "elsewhere"
    (target / "trace.json").write_text(json.dumps(index))
    with pytest.raises(ParityError, match="'elsewhere'"):
        parity.compare(mine, parity.read(target))


def test_first_loss_that_is_not_finite_is_an_error(good, tmp_path):
    def nan_loss():
        with accel.init(backend="cpu") as s:
            model = nn.Linear(1, 1)
            called, opt = s.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            s.backward(called(torch.full((1, 1), math.nan)).sum())
            s.step(opt)

    with pytest.raises(ParityError, match="the loss of the first step is nan"):
        parity.record(nan_loss, out=tmp_path / "t", steps=1)
    assert not (tmp_path / "t").exists()
    target = changed(good["fp32"], tmp_path / "nan")
    arrays = safetensors.numpy.load_file(target / "rank0.safetensors")
    arrays["loss"] = np.array([math.nan, *arrays["loss"][1:]])
    safetensors.numpy.save_file(arrays, target / "rank0.safetensors")
    with pytest.raises(ParityError, match="first step is nan on rank 0"):
        parity.compare(good["fp32"], parity.read(target))


def test_a_batchnorm_that_another_backends_autocast_keeps_in_fp32_is_noted_and_no_fault(good, tmp_path):
    mine = good["bf16"]
    layers = [{**vars(one), "dtype": "float32" if one.kind == "BatchNorm2d" else one.dtype} for one in mine.layers]
    here = parity.compare(mine, parity.read(changed(mine, tmp_path / "here", layers=layers)))
    assert here.finding.layer == "bn1"
    there = changed(mine, tmp_path / "there", layers=layers, run={**mine.run, "backend": "xla"})
    found = parity.compare(mine, parity.read(there))
    assert found.agree, found.verdict
    assert any("bn1" in note and "2 other" in note for note in found.notes)


def test_nan_in_one_run_alone_is_found(good, tmp_path):
    target = changed(good["fp32"], tmp_path / "t")
    arrays = safetensors.numpy.load_file(target / "rank0.safetensors")
    forward = arrays["forward"].copy()
    forward[3, 4, 4:] = math.nan
    forward[3, 4, 4] = 7
    safetensors.numpy.save_file({**arrays, "forward": forward}, target / "rank0.safetensors")
    found = parity.compare(good["fp32"], parity.read(target)).finding
    assert (found.step, found.layer) == (4, good["fp32"].layers[4].name)
    assert "finite in one run only" in found.what


def test_scripts_that_cannot_be_recorded_say_so(tmp_path):
    with pytest.raises(ParityError, match="took no optimizer step"):
        parity.record(lambda: None, out=tmp_path / "t", steps=1)
    with pytest.raises(ArgumentError, match=r"'nowhere\.py' is not a file"):
        parity.record("nowhere.py", out=tmp_path / "t", steps=1)
    with pytest.raises(ArgumentError, match="steps=0"):
        parity.record(lambda: None, out=tmp_path / "t", steps=0)
    with pytest.raises(ParityError, match="folder"):
        parity.record(lambda: None, out=tmp_path / "no" / "t", steps=1)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ParityError, match="not a trace"):
        parity.record(lambda: None, out=tmp_path / "mine", steps=1)

    def compiled():
        with accel.init(backend="cpu") as s:
            s.prepare(nn.Linear(1, 1), compile=True)

    with pytest.raises(UnsupportedError, match="compile=True"):
        parity.record(compiled, out=tmp_path / "t", steps=1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["record", "--out", "t"], "a script or --model"),
        (["record", "--model", "lm", "train.py"], "a script or --model"),
        (["record", "--model", "alexnet"], "--model alexnet"),
        (["record", "--model", "lm", "--seed", "-1"], "--seed -1"),
        (["record", "--model", "lm", "--dropout", "1"], "--dropout 1.0"),
        (["compare", "nowhere", "nowhere"], "not a trace"),
    ],
)
def test_wrong_use_of_the_command_is_refused_by_name(words, said):
    with pytest.raises(AccelError, match=said) as caught:
        app(["parity", *words], standalone_mode=False)
    assert caught.value.exit_code == 2
