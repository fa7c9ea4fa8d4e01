"""Contract of `Session` in one process: windows, steps, loops over data, meters, preparation, checkpoints."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import accel
from accel.errors import ArgumentError, CheckpointError, ModelError, UnsupportedError, WindowError
from accel.testing.models import assert_close, convnet, data, mlp, reference, sgd, values


def loss_of(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), y)


def prepared(session: Any, lr: float = 0.1, **arguments: Any) -> tuple[Any, Any]:
    model = mlp()
    called, optimizer = session.prepare(model, sgd(model, lr, **arguments))
    return called, optimizer


def run(session: Any, model: Any, optimizer: Any, loader: Any, **arguments: Any) -> list[Any]:
    results = []
    for x, y in session.batches(loader, **arguments):
        session.backward(loss_of(model, x, y))
        results.append(session.step(optimizer))
    return results


# -- windows -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2, 3, 7, 10])
@pytest.mark.parametrize("looked_ahead", [True, False])
def test_windows_are_means_over_their_real_size(start: Any, accumulate: int, looked_ahead: bool) -> None:  # T21
    """7 micro-batches: the last window may be incomplete, and is divided by its own size."""
    batches = [data(4, seed=i) for i in range(7)]
    session = start(accumulate=accumulate)
    model, optimizer = prepared(session)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    results = []
    if looked_ahead:
        for x, y in session.batches(batches):
            session.backward(loss_of(model, x, y))
            results.append(session.step(optimizer, scheduler=scheduler))
    else:
        for i, (x, y) in enumerate(batches):
            session.backward(loss_of(model, x.to(session.device), y.to(session.device)))
            results.append(session.step(optimizer, scheduler=scheduler, final=i == len(batches) - 1))
    windows = [batches[i : i + accumulate] for i in range(0, 7, accumulate)]
    steps = math.ceil(7 / accumulate)
    assert sum(r.boundary for r in results) == sum(r.stepped for r in results) == steps
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.9**steps)
    expected = mlp()
    plain = sgd(expected)
    for i, window in enumerate(windows):
        plain.param_groups[0]["lr"] = 0.1 * 0.9**i
        for x, y in window:
            (loss_of(expected, x, y) / len(window)).backward()
        plain.step()
        plain.zero_grad()
    assert_close(values(session.unwrap(model)), values(expected))


def test_accumulation_equals_one_large_batch(start: Any) -> None:
    x, y = data(8)
    halves = [(x[:4], y[:4]), (x[4:], y[4:])]
    results = []
    for accumulate, batches in ((1, [(x, y)] * 5), (2, halves * 5)):
        session = start(accumulate=accumulate)
        model, optimizer = prepared(session, momentum=0.9)
        run(session, model, optimizer, batches)
        results.append(values(session.unwrap(model)))
    assert_close(results[0], results[1])
    assert_close(results[0], values(reference([[(x, y)]] * 5, momentum=0.9)))


def test_weights_make_the_mean_over_samples(start: Any) -> None:  # T20
    """Three samples x=1 in one micro-batch and one x=5 in the next, target 1, weight 0: the gradient of the mean is
    -4."""
    session = start(accumulate=2)
    linear = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(linear.weight)
    model, optimizer = session.prepare(linear, sgd(linear, 1.0))
    for x in session.batches([torch.ones(3, 1), torch.full((1, 1), 5.0)]):
        session.backward((model(x) - 1).square().mean(), weight=len(x))
        session.step(optimizer)
    assert session.unwrap(model).weight.item() == pytest.approx(4.0)


@pytest.mark.parametrize("weight", [3, 3.0, "tensor"])
def test_weight_alone_changes_nothing(start: Any, weight: Any) -> None:
    session = start()
    model, optimizer = prepared(session)
    batches = [data(4, seed=i) for i in range(3)]
    for x, y in session.batches(batches):
        session.backward(
            loss_of(model, x, y), weight=torch.tensor(3.0, device=session.device) if weight == "tensor" else weight
        )
        session.step(optimizer)
    assert_close(values(session.unwrap(model)), values(reference([[b] for b in batches])))


def test_all_weights_zero_moves_nothing(start: Any) -> None:
    session = start()
    model, optimizer = prepared(session)
    before = values(session.unwrap(model))
    x, y = (t.to(session.device) for t in data(4))
    session.backward(loss_of(model, x, y), weight=0)
    assert session.step(optimizer).stepped
    assert_close(values(session.unwrap(model)), before, 0)


def test_several_losses_and_several_optimizers_share_one_window(start: Any) -> None:
    session = start(accumulate=2, clip_norm=0.05)
    model = mlp()
    first, second = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.SGD(model[2].parameters(), lr=0.1)
    called, first, second = session.prepare(model, first, second)
    batches = [data(4, seed=i) for i in range(4)]
    for x, y in session.batches(batches):
        out = called(x)
        session.backward(nn.functional.mse_loss(out, y) / 2)
        session.backward(nn.functional.mse_loss(called(x), y) / 2)
        result = session.step(first, second)
    assert result.grad_norm.item() > 0
    assert_close(values(session.unwrap(called)), values(reference([batches[:2], batches[2:]], clip=0.05)))


def test_zero_grad_left_in_the_loop_is_named(start: Any) -> None:
    for where in ("before backward", "before step"):
        session = start(accumulate=2)
        model, optimizer = prepared(session)
        with pytest.raises(WindowError, match="zero_grad"):  # noqa: PT012 - the second micro-batch must raise, wherever it notices
            for x, y in session.batches([data(4), data(4)]):
                if where == "before backward":
                    optimizer.zero_grad()
                session.backward(loss_of(model, x, y))
                if where == "before step":
                    optimizer.zero_grad(set_to_none=False)
                session.step(optimizer)


def test_step_whose_gradients_are_gone_is_an_error(start: Any) -> None:
    for arguments in ({}, {"clip_norm": 1.0}):
        session = start(**arguments)
        model, optimizer = prepared(session)
        session.backward(model(torch.ones(1, 6, device=session.device)).sum())
        optimizer.zero_grad()
        with pytest.raises(WindowError, match="no gradient at all"):
            session.step(optimizer)


def test_zero_grad_before_a_window_is_harmless(start: Any) -> None:
    session = start()
    model, optimizer = prepared(session)
    batches = [data(4, seed=i) for i in range(2)]
    for x, y in session.batches(batches):
        optimizer.zero_grad()
        session.backward(loss_of(model, x, y))
        session.step(optimizer)
    assert_close(values(session.unwrap(model)), values(reference([[b] for b in batches])))


def test_alternating_optimizers_need_a_window_of_one(start: Any) -> None:
    session = start()
    models = [mlp(0), mlp(1)]
    (a, opt_a), (b, opt_b) = (session.prepare(m, sgd(m)) for m in models)
    x, y = (t.to(session.device) for t in data(4))
    for model, optimizer in ((a, opt_a), (b, opt_b), (a, opt_a)):
        session.backward(loss_of(model, x, y))
        assert session.step(optimizer).stepped
    session.accumulate = 2
    session.backward(loss_of(a, x, y))
    session.step(opt_a)
    session.backward(loss_of(b, x, y))
    with pytest.raises(WindowError, match="accumulate=1"):
        session.step(opt_b)


def adversaries(session: Any) -> list[torch.Tensor]:
    """Two models that alternate, each loss running through both, with no zero_grad anywhere."""
    generator, critic = mlp(0), nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    g, opt_g = session.prepare(generator, sgd(generator, momentum=0.9))
    c, opt_c = session.prepare(critic, sgd(critic, momentum=0.9))
    for noise, real in session.batches([data(4, seed=10 * session.rank + i) for i in range(4)]):
        session.backward(c(g(noise).detach()).mean() - c(real).mean())
        session.step(opt_c)
        session.backward(-c(g(noise)).mean())
        session.step(opt_g)
    return values(session.unwrap(g)) + values(session.unwrap(c))


def _plain_step(loss: torch.Tensor, optimizer: Any, *cleared: Any) -> None:
    for one in cleared:
        one.zero_grad()
    loss.backward()
    optimizer.step()


def adversaries_by_hand(ranks: int) -> list[torch.Tensor]:
    g = mlp(0)
    c = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    opt_g, opt_c = sgd(g, momentum=0.9), sgd(c, momentum=0.9)
    for i in range(4):
        noise, real = (
            torch.cat(parts) for parts in zip(*(data(4, seed=10 * r + i) for r in range(ranks)), strict=True)
        )
        _plain_step(c(g(noise).detach()).mean() - c(real).mean(), opt_c, opt_g, opt_c)
        _plain_step(-c(g(noise)).mean(), opt_g, opt_g, opt_c)
    return values(g) + values(c)


def test_alternating_models_equal_plain_pytorch_without_any_zero_grad(start: Any) -> None:
    assert_close(adversaries(start()), adversaries_by_hand(1))


def test_window_size_may_change_at_the_last_batch_of_a_pass(start: Any) -> None:
    session = start()
    model, optimizer = prepared(session)
    batches = [data(4, seed=i) for i in range(5)]
    results = []
    for i, (x, y) in enumerate(session.batches(batches)):
        if i % 2 == 0:
            session.accumulate = 2
        session.backward(loss_of(model, x, y))
        results.append(session.step(optimizer))
    assert [r.boundary for r in results] == [False, True, False, True, True]
    assert_close(values(session.unwrap(model)), values(reference([batches[:2], batches[2:4], batches[4:]])))


def test_closed_session_does_not_train(start: Any) -> None:
    session = start()
    model, optimizer = prepared(session)
    loss = model(torch.ones(1, 6, device=session.device)).sum()
    session.close()
    with pytest.raises(WindowError, match="closed session"):
        session.backward(loss)
    with pytest.raises(WindowError, match="closed session"):
        session.step(optimizer)


def test_expanded_buffer_becomes_a_whole_one(start: Any) -> None:
    model = mlp()
    model.register_buffer("scale", torch.ones(1).expand(4))
    buffer = start().prepare(model).get_buffer("scale")
    assert buffer.tolist() == [1.0] * 4
    assert 0 not in buffer.stride()


def test_window_size_changes_between_windows_only(start: Any) -> None:
    session = start(accumulate=2)
    model, optimizer = prepared(session)
    x, y = (t.to(session.device) for t in data(4))
    session.backward(loss_of(model, x, y))
    session.step(optimizer)
    with pytest.raises(WindowError, match="window is open"):
        session.accumulate = 1
    session.backward(loss_of(model, x, y))
    assert session.step(optimizer).boundary
    session.accumulate = 1
    assert session.accumulate == 1
    with pytest.raises(ArgumentError, match="accumulate"):
        session.accumulate = 0


def test_step_without_backward_steps_nothing(start: Any) -> None:
    for arguments in ({}, {"clip_norm": 1.0}):
        session = start(**arguments)
        model, optimizer = prepared(session)
        before = values(session.unwrap(model))
        result = session.step(optimizer)
        assert (result.boundary, result.stepped, result.skipped) == (True, False, False)
        assert_close(values(session.unwrap(model)), before, 0)


def test_open_window_is_reported_as_dropped(start: Any, caplog: Any) -> None:
    session = start(accumulate=3)
    model, optimizer = prepared(session)
    x, y = (t.to(session.device) for t in data(4))
    session.backward(loss_of(model, x, y))
    session.step(optimizer)
    session.close()
    assert "a window of 1 finished micro-batch(es) is dropped" in caplog.text
    assert session.dropped_windows == 1
    assert all(p.grad is None for p in session.unwrap(model).parameters())


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda m, x: m(x), "shape"),
        (lambda m, x: m(x).sum().detach(), "not attached"),
        (lambda m, x: 3.0, "float"),
        (lambda m, x: None, "NoneType"),
    ],
)
def test_bad_loss_is_named(start: Any, loss: Any, said: str) -> None:
    session = start()
    model, _ = prepared(session)
    with pytest.raises(ArgumentError, match=said):
        session.backward(loss(model, torch.ones(2, 6, device=session.device)))


@pytest.mark.parametrize("weight", [-1, math.nan, math.inf, "many", True, [1]])
def test_bad_weight_is_named(start: Any, weight: Any) -> None:
    session = start()
    model, _ = prepared(session)
    with pytest.raises(ArgumentError, match="weight"):
        session.backward(model(torch.ones(2, 6, device=session.device)).sum(), weight=weight)


def test_weight_sometimes_is_an_error(start: Any) -> None:
    session = start(accumulate=2)
    model, optimizer = prepared(session)
    x = torch.ones(2, 6, device=session.device)
    session.backward(model(x).sum(), weight=2)
    session.step(optimizer)
    with pytest.raises(WindowError, match="always or never"):
        session.backward(model(x).sum())


def test_step_refuses_what_was_not_prepared(start: Any) -> None:
    session = start()
    prepared(session)
    other = mlp()
    with pytest.raises(ArgumentError, match="not prepared"):
        session.step(sgd(other))
    with pytest.raises(ArgumentError, match="no optimizer"):
        session.step()


def test_scheduler_that_needs_a_metric_is_refused_before_the_step(start: Any) -> None:
    session = start()
    model, optimizer = prepared(session)
    before = values(session.unwrap(model))
    session.backward(model(torch.ones(2, 6, device=session.device)).sum())
    with pytest.raises(ArgumentError, match="ReduceLROnPlateau"):
        session.step(optimizer, scheduler=torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer))
    assert_close(values(session.unwrap(model)), before, 0)


def test_hooks_of_the_user_see_finished_gradients(start: Any) -> None:
    session = start(accumulate=2, clip_norm=0.01)
    model, optimizer = prepared(session)
    seen = []
    optimizer.register_step_pre_hook(
        lambda opt, args, kwargs: seen.append(
            math.sqrt(sum(float(p.grad.square().sum()) for g in opt.param_groups for p in g["params"]))
        )
    )
    run(session, model, optimizer, [data(4), data(4)])
    assert seen == [pytest.approx(0.01, rel=1e-3)]


def test_clip_inf_only_measures(start: Any) -> None:
    session = start(clip_norm=math.inf)
    model, optimizer = prepared(session)
    batches = [data(4, seed=i) for i in range(2)]
    results = run(session, model, optimizer, batches)
    assert all(float(r.grad_norm) > 0 for r in results)
    assert_close(values(session.unwrap(model)), values(reference([[b] for b in batches])))


def test_frozen_parameters_stay(start: Any) -> None:
    session = start(clip_norm=1.0)
    model = mlp()
    model[0].requires_grad_(False)
    called, optimizer = session.prepare(model, sgd(model))
    before = values(model[0])
    run(session, called, optimizer, [data(4), data(4)])
    assert_close(values(session.unwrap(called)[0]), before, 0)


# -- activation checkpointing
# --------------------------------------------------------------------------------------------


class Recomputed(nn.Module):
    """A BatchNorm block with dropout, computed plainly or with its activations recomputed."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.block = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.4), nn.ReLU(inplace=True))
        self.head = nn.Linear(4 * 36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "module":
            x = accel.checkpoint(self.block, x)
        elif self.how == "function":
            x = accel.checkpoint(lambda t: self.block(t) * 1, x, modules=[self.block])
        else:
            x = self.block(x)
        out: torch.Tensor = self.head(x.flatten(1))
        return out


def train_recomputed(start: Any, how: str, policy: str) -> dict[str, torch.Tensor]:
    session = start(precision=policy, accumulate=2)
    model = Recomputed(how)
    called, optimizer = session.prepare(model, sgd(model, momentum=0.9))
    generator = torch.Generator().manual_seed(2)
    for x in session.batches([torch.randn(4, 3, 8, 8, generator=generator) for _ in range(6)]):
        with session.autocast():
            loss = called(x).float().square().mean()
        session.backward(loss)
        session.step(optimizer)
    return {name: value.detach().cpu() for name, value in session.unwrap(called).state_dict().items()}


@pytest.mark.parametrize("policy", ["fp32", "bf16"])
@pytest.mark.parametrize("how", ["module", "function"])
def test_recomputed_block_changes_its_buffers_once(backend: Any, start: Any, how: str, policy: str) -> None:  # T08
    """Parameters, running statistics and the count of batches are those of the plain run, dropout masks included."""
    cell = backend.capabilities()["train.checkpoint"]
    if not cell.available:
        pytest.skip(f"unsupported by the capability table: {cell.why}")
    plain, recomputed = train_recomputed(start, "plain", policy), train_recomputed(start, how, policy)
    assert int(recomputed["block.1.num_batches_tracked"]) == 6
    torch.testing.assert_close(recomputed, plain, rtol=1e-5, atol=1e-6)


def test_recomputing_is_refused_where_it_could_not_be_right(backend: Any) -> None:
    x = torch.ones(2, 3, device=backend.device.torch_device, requires_grad=True)
    with pytest.raises(ArgumentError, match="modules="):
        accel.checkpoint(lambda t: t * 2, x)
    if not backend.capabilities()["train.checkpoint"].available:
        with pytest.raises(UnsupportedError, match="checkpoint"):
            accel.checkpoint(nn.Identity(), x)


# -- loops over data ---------------------------------------------------------------------------------------------------


def test_batches_arrive_on_the_device_in_their_structure(start: Any) -> None:
    session = start()
    batch = {"x": torch.ones(2), "more": [torch.zeros(1), (torch.ones(1), "text", None)], "n": 3}
    (moved,) = session.batches([batch], train=False)
    assert moved["x"].device.type == moved["more"][1][0].device.type == session.device.type
    assert moved["more"][1][1:] == ("text", None)
    assert moved["n"] == 3


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_every_batch_comes_once_in_order(start: Any, prefetch: int) -> None:
    session = start()
    for count in (0, 1, 2, 5):
        batches = [torch.tensor([float(i)]) for i in range(count)]
        for arguments in ({"train": True}, {"train": False}):
            seen = [int(b) for b in session.batches(iter(batches), prefetch=prefetch, **arguments)]
            assert seen == list(range(count))


def test_skip_and_steps_limit_the_pass_and_take_no_more(start: Any) -> None:
    session = start()
    taken = []

    def stream() -> Any:
        for i in range(1000):
            taken.append(i)
            yield torch.tensor([float(i)])

    assert [int(b) for b in session.batches(stream(), skip=2, steps=3)] == [2, 3, 4]
    assert taken == [0, 1, 2, 3, 4]
    assert [int(b) for b in session.batches(stream(), train=False, skip=1, steps=2)] == [1, 2]


@pytest.mark.parametrize(
    "bad", [{"skip": -1}, {"steps": 0}, {"steps": -3}, {"prefetch": 0}, {"epoch": -1}, {"skip": 1.5}, {"train": "yes"}]
)
def test_bad_argument_of_batches_is_named(start: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        start().batches([1], **bad)


def test_loader_that_is_none_is_named(start: Any) -> None:
    with pytest.raises(ArgumentError, match="loader=int"):
        list(start().batches(3))


def test_epoch_reaches_every_set_epoch_and_counts_by_itself(start: Any) -> None:
    session = start()
    dataset = TensorDataset(torch.arange(16.0))
    loader = DataLoader(dataset, batch_size=4, sampler=session.sampler(dataset))

    def order(**arguments: Any) -> list[float]:
        return [v for (b,) in session.batches(loader, **arguments) for v in b.tolist()]

    first, second = order(epoch=0), order(epoch=1)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(16))
    assert order(epoch=0) == first
    counted = [order() for _ in range(2)]
    assert counted[0] == second
    assert counted[0] != counted[1]


def test_sampler_of_an_iterable_dataset_is_refused(start: Any) -> None:
    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(range(3))

    with pytest.raises(ArgumentError, match="map-style"):
        start().sampler(Stream())


def test_samplers_share_has_no_duplicates_on_any_world_size() -> None:  # T19
    from accel._sampler import ShardedSampler

    for count in (0, 1, 4, 5, 17):
        for world in (1, 2, 3, 4):
            for shuffle in (True, False):
                samplers = [
                    ShardedSampler(range(count), rank=r, world_size=world, shuffle=shuffle, seed=1)
                    for r in range(world)
                ]
                parts = [list(sampler) for sampler in samplers]
                assert sorted(i for part in parts for i in part) == list(range(count))
                assert [len(p) for p in parts] == [len(s) for s in samplers]
                assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_lap_counts_micro_batches_and_waiting(start: Any) -> None:
    session = start(accumulate=2)
    model, optimizer = prepared(session)
    session.lap()
    run(session, model, optimizer, [data(4)] * 4)
    lap = session.lap()
    assert lap.steps == 4
    assert lap.seconds > lap.data_seconds >= 0
    assert session.lap().steps == 0


# -- meters ------------------------------------------------------------------------------------------------------------


def test_meter_gives_weighted_means(start: Any) -> None:
    session = start()
    meter = session.meter()
    assert meter.read() == {}
    meter.add(weight=3, loss=torch.tensor(1.0, device=session.device), hits=True)
    meter.add(weight=1, loss=5.0)
    assert meter.read(reset=True) == {"loss": pytest.approx(2.0), "hits": pytest.approx(1.0)}
    assert meter.read() == {}
    meter.add(weight=0, nothing=1.0)
    assert math.isnan(meter.read(local=True)["nothing"])


def test_meter_keeps_what_it_was_given(start: Any) -> None:
    session = start()
    meter = session.meter()
    value = torch.tensor(2.0, device=session.device)
    meter.add(loss=value)
    meter.add(loss=value)
    value.fill_(100)
    assert meter.read() == {"loss": pytest.approx(2.0)}


@pytest.mark.parametrize(
    "bad", [{}, {"loss": "x"}, {"loss": torch.ones(2)}, {"loss": None}, {"weight": [1], "loss": 1}]
)
def test_meter_refuses_what_is_not_a_number(start: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=r"Meter\.add"):
        start().meter().add(**bad)


def test_agreements_of_one_rank(start: Any, capsys: Any) -> None:
    session = start()
    assert session.any(True) is True
    assert session.any(False) is False
    assert session.mean(3, weight=2) == 3.0
    with pytest.raises(ArgumentError, match="weight"):
        session.mean(3, weight=0)
    assert session.gather(torch.ones(2, 3, device=session.device)).shape == (2, 3)
    assert session.gather(torch.tensor(1.0, device=session.device)).tolist() == [1.0]
    session.barrier()
    session.print("hello", end="")
    assert capsys.readouterr().out == "hello"
    assert (session.rank, session.world_size, session.local_rank, session.local_world_size, session.is_main) == (
        0,
        1,
        0,
        1,
        True,
    )


# -- preparation -------------------------------------------------------------------------------------------------------


def test_optimizer_built_before_prepare_trains_the_placed_model_with_its_state(start: Any) -> None:  # T54
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = data(4)
    loss_of(model, x, y).backward()
    optimizer.step()
    optimizer.zero_grad()
    expected = mlp()
    plain = torch.optim.Adam(expected.parameters(), lr=0.01)
    for _ in range(3):
        loss_of(expected, x, y).backward()
        plain.step()
        plain.zero_grad()
    session = start()
    called, optimizer = session.prepare(model, optimizer)
    held = {id(p) for g in optimizer.param_groups for p in g["params"]}
    assert held == {id(p) for p in session.unwrap(called).parameters()}
    run(session, called, optimizer, [(x, y)] * 2)
    assert_close(values(session.unwrap(called)), values(expected))


def test_ties_are_kept(start: Any) -> None:
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    session = start()
    called = session.unwrap(session.prepare(model))
    assert called[0].weight is called[1].weight
    assert called[0].weight.device.type == session.device.type


def test_model_alone_comes_back_alone(start: Any) -> None:
    session = start()
    called = session.prepare(mlp())
    assert isinstance(called, nn.Module)
    assert isinstance(session.unwrap(called), nn.Sequential)


@pytest.mark.parametrize(
    "case", ["not a module", "not an optimizer", "foreign optimizer", "closure", "meta", "twice", "buffers"]
)
def test_what_cannot_be_prepared_is_named(start: Any, case: str) -> None:  # T45, T54
    session = start()
    model = mlp()
    with pytest.raises((ArgumentError, ModelError)) as caught:  # noqa: PT012
        if case == "not a module":
            session.prepare([1])
        elif case == "not an optimizer":
            session.prepare(model, model)
        elif case == "foreign optimizer":
            session.prepare(model, sgd(mlp()))
        elif case == "closure":
            session.prepare(model, torch.optim.LBFGS(model.parameters()))
        elif case == "meta":
            session.prepare(nn.Linear(2, 2, device="meta"))
        elif case == "buffers":
            session.prepare(model, buffers="some")
        else:
            session.prepare(session.prepare(model))
    assert "prepare(" in str(caught.value)


def test_parameters_on_several_devices_are_named(start: Any) -> None:  # T45
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, device="meta"))
    with pytest.raises(ModelError, match=r"'1\.weight'.*meta"):
        start().prepare(model)


def test_closed_session_closes_again(start: Any) -> None:
    session = start()
    session.close()
    session.close()


# -- checkpoints -------------------------------------------------------------------------------------------------------


class Tracked:
    """Everything a run has, so that it can be saved, thrown away and loaded."""

    def __init__(self, start: Any, policy: str = "fp32", accumulate: int = 1) -> None:
        self.session = start(precision=policy, accumulate=accumulate)
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 3))
        self.model, self.optimizer = self.session.prepare(model, torch.optim.Adam(model.parameters(), lr=0.05))
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)
        dataset = TensorDataset(*data(24))
        self.loader = DataLoader(dataset, batch_size=4, shuffle=True)
        self.objects = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}
        self.seen: list[float] = []

    def train(self, epoch: int, stop: int | None = None) -> None:
        for i, (x, y) in enumerate(self.session.batches(self.loader, epoch=epoch), 1):
            self.seen.append(float(x.sum()))
            self.session.backward(loss_of(self.model, x, y))
            self.session.step(self.optimizer, scheduler=self.scheduler)
            if i == stop:
                return

    def state(self) -> list[torch.Tensor]:
        return values(self.session.unwrap(self.model))


@pytest.mark.parametrize("stop", [1, 3, 6])
def test_resume_in_the_middle_of_an_epoch_goes_on_as_if_never_stopped(
    start: Any, tmp_path: Any, stop: int
) -> None:  # T17, T52, T54
    whole = Tracked(start)
    whole.train(0)
    whole.train(1)
    first = Tracked(start)
    first.train(0, stop)
    first.session.save(tmp_path / "c", epoch=0, **first.objects)
    first.session.close()
    torch.manual_seed(12345)
    second = Tracked(start)
    assert second.session.load(tmp_path / "c", **second.objects) == {"epoch": 0}
    second.train(0)
    second.train(1)
    assert first.seen + second.seen == whole.seen
    assert_close(second.state(), whole.state(), 0)
    assert second.scheduler.state_dict() == whole.scheduler.state_dict()


def test_finished_epoch_is_not_repeated(start: Any, tmp_path: Any) -> None:
    first = Tracked(start)
    first.train(0)
    first.session.save(tmp_path / "c", **first.objects)
    second = Tracked(start)
    second.session.load(tmp_path / "c", **second.objects)
    second.train(0)
    assert second.seen == []
    second.train(1)
    assert len(second.seen) == 6


def test_epoch_that_steps_cut_short_is_resumed_inside(start: Any, tmp_path: Any) -> None:
    whole, first, second = Tracked(start), Tracked(start), Tracked(start)
    whole.session.backend.device.seed(0)
    whole.train(0)
    first.session.backend.device.seed(0)
    for x, y in first.session.batches(first.loader, epoch=0, steps=2):
        first.seen.append(float(x.sum()))
        first.session.backward(loss_of(first.model, x, y))
        first.session.step(first.optimizer, scheduler=first.scheduler)
    first.session.save(tmp_path / "c", **first.objects)
    second.session.load(tmp_path / "c", **second.objects)
    second.train(0)
    assert first.seen + second.seen == whole.seen


def test_batches_of_an_open_window_come_again(start: Any, tmp_path: Any) -> None:
    first = Tracked(start, accumulate=2)
    first.train(0, 3)  # one window done, one micro-batch of the next
    first.session.save(tmp_path / "c", **first.objects)
    second = Tracked(start, accumulate=2)
    second.session.load(tmp_path / "c", **second.objects)
    second.train(0)
    assert second.seen[0] == first.seen[2]
    assert len(second.seen) == 4
    with pytest.raises(WindowError, match="open window"):
        first.session.load(tmp_path / "c", **first.objects)


def test_plain_values_come_back_and_objects_are_checked_before_any_changes(start: Any, tmp_path: Any) -> None:
    first = Tracked(start)
    first.train(0, 2)
    first.session.save(tmp_path / "c", best=0.5, notes={"a": [1, None, "x"], "shape": (1, 2)}, **first.objects)
    second = Tracked(start)
    assert second.session.load(tmp_path / "c", **second.objects) == {
        "best": 0.5,
        "notes": {"a": [1, None, "x"], "shape": (1, 2)},
    }
    before = second.state()
    for bad in ({"model": convnet()}, {"model": second.model, "optimizer": sgd(mlp())}, {"modell": second.model}):
        with pytest.raises(CheckpointError):
            second.session.load(tmp_path / "c", **bad)
        assert_close(second.state(), before, 0)
    with pytest.raises(CheckpointError, match="absent"):
        second.session.load(tmp_path / "absent", **second.objects)


def test_loss_scale_is_saved_and_notes_say_where_it_is_not_used(
    backend: Any, start: Any, tmp_path: Any, caplog: Any
) -> None:  # T17
    if not backend.capabilities()["precision.fp16"].available:
        pytest.skip(f"unsupported by the capability table: {backend.capabilities()['precision.fp16'].why}")
    half, full = Tracked(start, "fp16"), Tracked(start, "fp32")
    for _ in range(3):
        half.session.backward(half.model(torch.full((1, 6), math.inf, device=half.session.device)).sum())
        half.session.step(half.optimizer)
    half.train(0, 2)
    half.session.save(tmp_path / "half", **half.objects)
    full.session.save(tmp_path / "full", **full.objects)
    again = Tracked(start, "fp16")
    again.session.load(tmp_path / "half", **again.objects)
    again.session.backward(again.model(torch.ones(1, 6, device=again.session.device)).sum())
    assert float(again.session.step(again.optimizer).loss_scale) == 65536.0 / 8
    other = Tracked(start, "fp16")
    other.session.load(tmp_path / "full", **other.objects)
    assert "holds no loss scale" in caplog.text
    full.session.load(tmp_path / "half", **full.objects)
    assert "its loss scale is not used" in caplog.text
