"""`accel._state`: state out of models, optimizers, schedulers and scalers, through a checkpoint, and back."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim import lr_scheduler

from accel._checkpoint import read, save
from accel._codec import decode, encode
from accel._state import apply_state, apply_states, state_of
from accel._unwrap import unwrap
from accel.errors import ArgumentError, CheckpointError


class Net(nn.Module):
    """Has a submodule that is truly called `module`, BatchNorm buffers and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 4)
        self.head.weight = self.module.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.module(x)))  # type: ignore[no-any-return]


KEYS = {
    *("module.weight", "module.bias", "head.weight", "head.bias"),
    *(f"norm.{name}" for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")),
}


def through(state: Any) -> Any:
    """`state` as it comes back from a checkpoint."""
    return decode(encode(state))


@pytest.fixture(scope="module")
def world() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def compiled(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():  # importing torch._dynamo the first time warns on some versions
        warnings.simplefilter("ignore")
        return torch.compile(model, backend="eager")  # type: ignore[return-value]


WRAPPINGS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda model: model,
    "ddp": ddp,
    "compiled": compiled,
    "compiled-ddp": lambda model: compiled(ddp(model)),
    "ddp-compiled": lambda model: ddp(compiled(model)),
}


@pytest.mark.parametrize("source", WRAPPINGS)
def test_each_wrapping_loads_into_each(world: None, source: str) -> None:  # T55
    saved = WRAPPINGS[source](Net())
    state = through(state_of("model", saved))
    assert set(state) == KEYS
    for target, wrap in WRAPPINGS.items():
        plain = Net()
        wrapped = wrap(plain)
        assert unwrap(wrapped) is plain
        apply_state("model", wrapped, state)
        for key, value in plain.state_dict().items():
            assert torch.equal(value, unwrap(saved).state_dict()[key]), (target, key)
        assert plain.head.weight is plain.module.weight


def test_wrappers_inside_a_model_leave_no_prefix(world: None) -> None:  # T55
    plain = nn.Sequential(Net(), nn.Sequential(Net()))
    inner = nn.Sequential(compiled(ddp(Net())), nn.Sequential(ddp(compiled(Net()))))
    state = through(state_of("model", plain))
    apply_state("model", compiled(inner), state)
    back = through(state_of("model", inner))
    assert list(back) == list(state)
    assert all(torch.equal(back[key], state[key]) for key in state)
    assert back._metadata["1.0.norm"] == {"version": 2}
    apply_state("model", plain, back)


def test_names_alone_make_no_wrapper() -> None:
    """Modules that only look like wrappers keep their keys."""

    class Lookalike(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(1, 1)
            self._orig_mod = nn.Linear(1, 1)

    model = Lookalike()
    assert unwrap(model) is model
    assert set(state_of("model", model)) == {"module.weight", "module.bias", "_orig_mod.weight", "_orig_mod.bias"}


def test_module_versions_reach_load_state_dict() -> None:
    seen: list[Any] = []

    class Versioned(nn.Linear):
        _version = 7

        def _load_from_state_dict(self, state: Any, prefix: str, metadata: Any, *rest: Any) -> None:
            seen.append(metadata.get("version"))
            super()._load_from_state_dict(state, prefix, metadata, *rest)

    apply_state("model", nn.Sequential(Versioned(1, 1)), through(state_of("model", nn.Sequential(Versioned(1, 1)))))
    assert seen == [7]


def changed(state: dict[str, Any], **change: Any) -> dict[str, Any]:
    return {key: value for key, value in {**state, **change}.items() if value is not None}


LINEAR = {"weight": torch.ones(2, 3), "bias": torch.ones(2)}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"module.weight": torch.ones(2, 3)}, r"no key of the checkpoint matches this Linear; .* has module\.weight"),
        ({}, "no key of the checkpoint matches this Linear; the checkpoint has nothing"),
        (changed(LINEAR, bias=None), "keys 1 missing from the checkpoint: bias"),
        (changed(LINEAR, extra=torch.ones(1)), "keys 1 unknown to the model: extra"),
        (
            changed(LINEAR, **{f"x{i}": torch.ones(1) for i in range(9)}),
            "9 unknown to the model: x0, x1, x2, x3, x4 and 4 more",
        ),
        (changed(LINEAR, weight=torch.ones(3, 2)), r"weight \(checkpoint float32\[3, 2\], model float32\[2, 3\]\)"),
        (changed(LINEAR, bias=torch.ones(2, dtype=torch.int64)), r"bias \(checkpoint int64\[2\], model float32\[2\]\)"),
        (changed(LINEAR, bias=3), r"bias \(checkpoint int, model float32\[2\]\)"),
        ([1, 2], "the checkpoint holds a list, not the state of a Linear"),
        (None, "the checkpoint holds a NoneType"),
    ],
)
def test_model_that_does_not_fit_is_refused_unchanged(state: Any, message: str) -> None:  # T55
    model = nn.Linear(3, 2)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(CheckpointError, match=message) as caught:
        apply_state("model", model, state)
    assert str(caught.value).startswith("model: ")
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_other_float_dtype_is_converted_and_the_model_keeps_its_own() -> None:
    model = nn.Linear(3, 2, dtype=torch.bfloat16)
    apply_state("model", model, LINEAR)
    assert model.weight.dtype is torch.bfloat16
    assert torch.equal(model.weight, torch.ones(2, 3, dtype=torch.bfloat16))


def test_extra_state_of_a_module_is_carried() -> None:
    class Extra(nn.Linear):
        extra: Any = None

        def get_extra_state(self) -> Any:
            return self.extra

        def set_extra_state(self, state: Any) -> None:
            self.extra = state

    source, target = Extra(1, 1), Extra(1, 1)
    source.extra = {"seen": 3}
    apply_state("model", target, through(state_of("model", source)))
    assert target.extra == {"seen": 3}


# --- optimizers


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adam-fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "adam-amsgrad-foreach": lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True, foreach=True),
    "adamw-tensor-lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.1)),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.9, centered=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=2),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))

        def closure(x: torch.Tensor = x) -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = model(x).square().mean()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]


def build(kind: str, seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    return model, OPTIMIZERS[kind](
        [{"params": [*model[0].parameters()]}, {"params": [*model[2].parameters()], "lr": 0.05}]
        if kind != "lbfgs"
        else model.parameters()
    )


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_next_steps_equal_an_uninterrupted_run(tmp_path: Path, kind: str) -> None:  # T54
    model, optimizer = build(kind, 0)
    train(model, optimizer, 3)
    parts = {"model": model, "optimizer": optimizer}
    save(tmp_path / "last", {name: state_of(name, obj) for name, obj in parts.items()}, ranks={}, meta={})
    train(model, optimizer, 3, first=3)
    again, again_optimizer = build(kind, 1)
    states = read(tmp_path / "last").objects
    assert apply_states({"model": again, "optimizer": again_optimizer}, states) == {}
    train(again, again_optimizer, 3, first=3)
    for ours, expected in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, expected)


def test_a_checkpoint_can_be_loaded_twice() -> None:
    """Optimizers keep tensors that they are given; two must not share them, nor change the checkpoint."""
    model, optimizer = build("adam", 0)
    train(model, optimizer, 2)
    state = through(state_of("optimizer", optimizer))
    kept = copy.deepcopy(state)
    loaded = []
    for _ in range(2):
        again, again_optimizer = build("adam", 0)
        apply_state("optimizer", again_optimizer, state)
        train(again, again_optimizer, 2, first=2)
        loaded.append(again_optimizer)
    assert torch.equal(state["state"][0]["exp_avg"], kept["state"][0]["exp_avg"])
    assert state["state"][0]["step"] == kept["state"][0]["step"] == 2
    assert "accel.parameter_shapes" in state
    for first, second in zip(*(o.state.values() for o in loaded), strict=True):
        assert first["step"] == second["step"] == 4


def test_state_follows_the_parameters_device_and_the_optimizers_way_of_running() -> None:  # T54
    model, optimizer = build("adam", 0)
    train(model, optimizer, 2)
    state = through(state_of("optimizer", optimizer))
    for capturable in (False, True):
        moved = copy.deepcopy(model).to("meta")
        other = torch.optim.Adam(
            [{"params": [*moved[0].parameters()]}, {"params": [*moved[2].parameters()]}], capturable=capturable
        )
        apply_state("optimizer", other, state)
        assert [group["capturable"] for group in other.param_groups] == [capturable] * 2
        for entry in other.state.values():
            assert entry["exp_avg"].device.type == "meta"
            assert entry["step"].dtype is torch.float32
            assert entry["step"].device.type == (
                "meta" if capturable else "cpu"
            )  # a capturable one keeps it on the device


def test_fused_and_plain_load_each_others_state() -> None:  # T54
    for source, target in (("adam-fused", "adam"), ("adam", "adam-fused")):
        model, optimizer = build(source, 0)
        train(model, optimizer, 2)
        again, again_optimizer = build(target, 1)
        apply_states(
            {"model": again, "optimizer": again_optimizer},
            {"model": through(state_of("model", model)), "optimizer": through(state_of("optimizer", optimizer))},
        )
        assert bool(again_optimizer.param_groups[0]["fused"]) == (target == "adam-fused")
        train(model, optimizer, 2, first=2)
        train(again, again_optimizer, 2, first=2)
        for ours, expected in zip(again.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(ours, expected)


def test_learning_rate_keeps_the_kind_it_has_here() -> None:
    for source, target in (("adam", "adamw-tensor-lr"), ("adamw-tensor-lr", "adam")):
        state = through(state_of("optimizer", build(source, 0)[1]))
        optimizer = build(target, 0)[1]
        optimizer.param_groups[0]["lr"] = torch.tensor(0.7) if target == "adamw-tensor-lr" else 0.7
        apply_state("optimizer", optimizer, state)
        lr = optimizer.param_groups[0]["lr"]
        assert type(lr) is (torch.Tensor if target == "adamw-tensor-lr" else float)
        assert float(lr) == pytest.approx(0.1)


def test_optimizer_that_does_not_fit_is_refused_unchanged() -> None:
    model, optimizer = build("sgd", 0)
    train(model, optimizer, 1)
    state = through(state_of("optimizer", optimizer))
    kept = copy.deepcopy(optimizer.state_dict())
    others = {
        r"groups of sizes \[2, 2\], this SGD has \[4\]": torch.optim.SGD(model.parameters()),
        r"parameter 2 \(checkpoint \(2, 5\), optimizer \(2, 6\)\)": torch.optim.SGD(
            [
                {"params": [*nn.Linear(3, 5).parameters()], "momentum": 0.5},
                {"params": [*nn.Linear(6, 2).parameters()]},
            ]
        ),
    }
    for message, other in others.items():
        with pytest.raises(CheckpointError, match=f"^optimizer: .*{message}"):
            apply_state("optimizer", other, state)
        assert not other.state
    for wrong in ({}, {"param_groups": 3}, {"param_groups": [{}]}):
        with pytest.raises(CheckpointError, match="holds no state of an optimizer"):
            apply_state("optimizer", optimizer, wrong)
    assert str(optimizer.state_dict()) == str(kept)


# --- schedulers, scalers and the rest


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "step": lambda o: lr_scheduler.StepLR(o, 2),
    "multistep": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4]),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "onecycle": lambda o: lr_scheduler.OneCycleLR(o, 0.5, total_steps=20),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.1, 0.5, step_size_up=3, mode="triangular2"),
    "warm-restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=2), lr_scheduler.PolynomialLR(o, 8)], [2]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1),
}


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_schedulers_go_on_where_they_were(kind: str) -> None:
    def make() -> tuple[torch.optim.Optimizer, Any]:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
        return optimizer, SCHEDULERS[kind](optimizer)

    def run(optimizer: torch.optim.Optimizer, scheduler: Any, steps: int) -> list[float]:
        rates = []
        for _ in range(steps):
            optimizer.step()
            scheduler.step(*([1.0] if kind == "plateau" else []))
            rates.append(optimizer.param_groups[0]["lr"])
        return rates

    optimizer, scheduler = make()
    run(optimizer, scheduler, 3)
    states = {"optimizer": through(state_of("optimizer", optimizer)), "scheduler": through(state_of("s", scheduler))}
    again_optimizer, again_scheduler = make()
    apply_states({"optimizer": again_optimizer, "scheduler": again_scheduler}, states)
    assert run(again_optimizer, again_scheduler, 5) == run(optimizer, scheduler, 5)


def test_multistep_milestones_stay_a_counter() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    scheduler = lr_scheduler.MultiStepLR(optimizer, [2, 4, 4])
    apply_state("scheduler", scheduler, through(state_of("scheduler", scheduler)))
    assert sorted(scheduler.milestones.elements()) == [2, 4, 4]  # type: ignore[attr-defined]


def test_scaler_round_trip() -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(1))
    state = through(state_of("scaler", scaler))
    other = torch.amp.GradScaler("cpu")
    apply_state("scaler", other, state)
    assert other.get_scale() == 8.0
    with pytest.raises(CheckpointError, match=r"^scaler: loading into this GradScaler failed \(KeyError"):
        apply_state("scaler", other, {"unknown": 1})


def test_plain_values_come_back_beside_what_is_loaded() -> None:
    model = nn.Linear(3, 2)
    states = through({"model": state_of("model", model), "epoch": state_of("epoch", 3), "best": (1, 0.5), "old": None})
    rest = apply_states({"model": model, "epoch": 0}, states)
    assert rest == {"epoch": 3, "best": (1, 0.5), "old": None}


def test_absent_object_is_named_with_what_there_is() -> None:
    with pytest.raises(CheckpointError, match="the checkpoint has no optimizer; it holds model, epoch"):
        apply_states({"model": nn.Linear(3, 2), "optimizer": 1}, {"model": LINEAR, "epoch": 1})


def test_no_object_changes_when_a_later_one_does_not_fit() -> None:
    model, optimizer = build("sgd", 0)
    before = copy.deepcopy(model.state_dict())
    states = {"model": state_of("model", build("sgd", 1)[0]), "optimizer": {"nothing": 1}}
    with pytest.raises(CheckpointError, match=r"^optimizer: "):
        apply_states({"model": model, "optimizer": optimizer}, states)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_object_that_could_not_be_loaded_is_refused_at_save() -> None:
    class OneWay:
        def state_dict(self) -> dict[str, Any]:
            return {}

    with pytest.raises(ArgumentError, match="meter: OneWay has state_dict.. but no load_state_dict"):
        state_of("meter", OneWay())
