"""What a lazy device could get wrong: random numbers, timing, checkpoints, switches, other processes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

import accel
from accel.bench import _timing
from accel.errors import LaunchError
from accel.testing.models import data, mlp, sgd, values


def test_the_backend_says_that_it_is_no_tpu(backend):
    (info,) = [one for one in accel.backends() if one.name == "xla"]
    assert info.usable
    assert info.origin == backend.origin == "emulated"
    assert "not how a TPU does" in info.reason
    assert info.hardware is None
    assert backend.device.properties().name == "XLA on CPU"


def test_importing_accel_loads_neither_torch_nor_torch_xla():
    code = "import accel, sys; accel.__version__; print(sorted({'torch', 'torch_xla'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_flag_is_named_and_does_not_end_this_process():
    code = "import accel; print([b.reason for b in accel.backends() if b.name == 'xla'][0])"
    environ = {**os.environ, "XLA_FLAGS": "--xla_no_such_flag=1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=120, check=True
    )
    assert "starting torch_xla fails" in done.stdout
    assert "Unknown flag in XLA_FLAGS: --xla_no_such_flag=1" in done.stdout


# -- random numbers ----------------------------------------------------------------------------------------------------


def test_random_numbers_differ_between_steps_and_not_with_the_cuts(backend):  # T61
    device = backend.device

    def draws(cut):
        device.seed(11)
        found = []
        for _ in range(4):
            found.append(nn.functional.dropout(torch.ones(32, device=device.torch_device)))
            if cut:
                device.flush()
        return [one.cpu() for one in found]

    one_graph, many = draws(False), draws(True)
    assert all(torch.equal(a, b) for a, b in zip(one_graph, many, strict=True))
    assert not any(torch.equal(a, b) for a, b in itertools.pairwise(many))


def test_random_state_is_a_plain_number(backend):  # T52
    assert type(backend.device.rng_state()["xla"]) is int


def test_random_state_of_another_device_type_says_that_the_generator_goes_on(backend):  # T52
    state = {name: part for name, part in backend.device.rng_state().items() if name != "xla"}
    (note,) = backend.device.set_rng_state(state)
    assert "no part 'xla'" in note


# -- timing ------------------------------------------------------------------------------------------------------------


def test_a_timed_step_has_run_and_compilation_is_warm_up(backend, runs):  # T29
    """The step only records; it is new in its first four calls, so that one step of warm-up is not enough."""
    device = backend.device
    x = torch.randn(64, 64, device=device.torch_device)
    device.flush()
    calls, ran, kept = 0, [], []

    def step():
        nonlocal calls
        calls += 1
        y = x
        for _ in range(max(1, 5 - calls)):
            y = y @ x
        kept[:] = [y]
        before = runs()
        ran.append(before)
        return 64

    ticks = itertools.count()  # every step takes 1 s: still from the first on
    timing = _timing.measure(step, device, steps=3, repeats=2, warmup=1, clock=lambda: float(next(ticks)))
    assert len(timing.warmup) == 5
    assert len(timing.compiling) == 4
    assert timing.warnings == []
    assert [b - a for a, b in itertools.pairwise(ran)] == [1] * (calls - 1)  # each had run when the next began
    assert calls == 5 + 6


# -- checkpoints -------------------------------------------------------------------------------------------------------


def test_what_is_pending_is_saved_with_its_value(start, tmp_path):  # T58
    session = start()
    called, optimizer = session.prepare(model := mlp(), sgd(model, momentum=0.9))
    for x, y in session.batches([data(8)] * 2):
        session.backward(nn.functional.mse_loss(called(x), y))
        session.step(optimizer)
    average = session.unwrap(called)[0].weight.detach() * 0.5  # recorded, not run
    with torch.no_grad():
        session.unwrap(called)[0].bias.add_(1.0)
    expected = values(session.unwrap(called))
    session.save(tmp_path / "c", model=called, optimizer=optimizer, average=average)
    other = start()
    loaded, fresh = other.prepare(again := mlp(7), sgd(again, momentum=0.9))
    plain = other.load(tmp_path / "c", model=loaded, optimizer=fresh)
    assert plain["average"].device.type == "cpu"
    assert torch.equal(plain["average"], expected[0] * 0.5)
    assert all(torch.equal(a, b) for a, b in zip(values(other.unwrap(loaded)), expected, strict=True))
    buffers = [fresh.state[p]["momentum_buffer"] for g in fresh.param_groups for p in g["params"]]
    assert {b.device.type for b in buffers} == {"xla"}


# -- collectives -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
def test_all_reduce_of_one_rank_is_in_place(start, op):  # T23
    session = start()
    t = torch.arange(3.0, device=session.device)
    assert session.backend.collective.all_reduce(t, op).result() is t
    assert t.tolist() == [0, 1, 2]


def test_processes_that_would_not_communicate_are_refused(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "1")  # nobody listens: it must not come to a connection
    with pytest.raises(LaunchError, match=r"WORLD_SIZE=2, but torch_xla sees a world of 1.*accel launch --nproc"):
        accel.init(backend="xla", timeout=5.0)


# -- numerics ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "precision"), [("fp32", "highest"), ("tf32", "default"), ("bf16", "highest")])
def test_policy_sets_the_precision_of_matrix_products(start, policy, precision):
    assert start(precision=policy).backend.precision.describe()["switches"]["mat_mul_precision"] == precision


def test_a_second_precision_in_one_process_is_warned_of(start, monkeypatch, caplog):
    """torch_xla finds a compiled graph again whatever the precision is now."""
    from accel_xla import numerics

    monkeypatch.setattr(numerics, "_used", set())
    start(precision="fp32").close()
    start(precision="bf16").close()
    assert "start a new process" not in caplog.text
    start(precision="tf32").close()
    assert "has run under 'highest'" in caplog.text


def test_the_graph_is_found_again_whatever_the_precision(start, compiles):
    """Why the warning above is there; when torch_xla tells such graphs apart, both can go."""
    counted = []
    for policy in ("fp32", "tf32"):
        session = start(precision=policy)
        x = torch.ones(5, 7, device=session.device)
        session.backend.device.flush()
        kept = x @ x.T
        session.backend.device.flush()
        counted.append(compiles())
        session.close()
        assert kept.shape == (5, 5)
    assert counted[0] == counted[1] > 0


# -- recomputation -----------------------------------------------------------------------------------------------------


def test_recomputation_stays_apart_from_the_forward_and_in_one_graph(start, runs):  # T08
    """Without the barrier XLA's compiler would find forward and recomputation equal, and keep the activations."""
    import torch_xla

    session = start()
    block = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Dropout(0.5), nn.Linear(16, 3))
    called = session.prepare(block)
    x = torch.randn(4, 6).to(session.device)
    session.backend.device.flush()
    before = runs()
    accel.checkpoint(called, x).square().mean().backward()
    grads = [p.grad for p in called.parameters()]
    assert runs() == before
    text = torch_xla._XLAC._get_xla_tensors_hlo(grads)
    assert "opt-barrier" in text
    assert text.count(" tanh(") == 2


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_tpu_that_is_not_there_is_refused_at_once():
    """Nothing is loaded for the answer, so no metadata service is asked for minutes."""
    code = (
        "import accel, sys\n"
        "try: accel.init(backend='xla')\n"
        "except accel.errors.BackendError as error: print(error, sorted({'torch_xla', 'libtpu'} & set(sys.modules)))"
    )
    environ = {**os.environ, "PJRT_DEVICE": "TPU"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert "no TPU is present" in done.stdout
    assert "PJRT_DEVICE=CPU runs XLA on the CPU on purpose" in done.stdout
    assert done.stdout.strip().endswith("[]")
