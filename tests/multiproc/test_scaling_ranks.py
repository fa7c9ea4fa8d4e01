"""fp16 on four ranks with random overflows on random ranks: all ranks decide alike, at every step."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import pytest
import torch
from torch import nn

import accel
from accel.testing.models import data, mlp, sgd
from accel.testing.ranks import RankPool
from tests.prove import records


def digest(parameters: list[nn.Parameter]) -> str:
    """The same for the same bits only."""
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in parameters)).hexdigest()


def train(steps: int, local: bool) -> dict[str, Any]:
    """`steps` steps, on each rank one loss in ten is infinite. `local`: one layer is not reduced, and nothing clipped,
    since the norm is then another on each rank.
    """
    with accel.init(
        backend="cpu",
        precision="fp16",
        clip_norm=None if local else 1.0,
        loss_scale=accel.LossScale(init=1024.0, interval=5),
    ) as s:
        model = mlp()
        if local:
            nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(
                model, ["2.weight", "2.bias"]
            )
        called, optimizer = s.prepare(model, sgd(model, 0.01, momentum=0.9))
        agreements = 0
        reduce = s.backend.collective.all_reduce

        def counting(tensor: Any, op: str = "sum", **options: Any) -> Any:
            nonlocal agreements
            agreements += op == "max"
            return reduce(tensor, op, **options)

        s.backend.collective.all_reduce = counting
        random = torch.Generator().manual_seed(1000 + s.rank)
        seen = []
        mine = 0
        shared = [p for name, p in model.named_parameters() if not (local and name.startswith("2."))]
        for step in range(steps):
            x, y = data(4, seed=step * s.world_size + s.rank)
            with s.autocast():
                out = called(x)
            loss = nn.functional.mse_loss(out.float(), y)
            bad = float(torch.rand((), generator=random)) < 0.1
            mine += bad
            s.backward(loss * math.inf if bad else loss)
            result = s.step(optimizer)
            seen.append((result.skipped, float(result.loss_scale), digest(shared)))
        return {"seen": seen, "mine": mine, "agreements": agreements}


@pytest.fixture(scope="module")
def four():
    with RankPool(4) as pool:
        yield pool


def check(found: list[dict[str, Any]], steps: int, local: bool) -> None:
    assert all(rank["seen"] == found[0]["seen"] for rank in found), "ranks hold other scales or parameters"
    skipped = [step for step, (skip, *_) in enumerate(found[0]["seen"]) if skip]
    assert 0 < len(skipped) < steps
    assert sum(rank["mine"] for rank in found) >= len(skipped)
    assert len({scale for _, scale, _ in found[0]["seen"]}) > 2
    # Where every gradient was reduced an overflow has reached all ranks with it, and nobody need ask.
    assert [rank["agreements"] for rank in found] == [steps if local else 0] * 4


@pytest.mark.parametrize("local", [False, True], ids=["all-reduced", "a-layer-of-its-own"])
def test_scales_and_parameters_are_identical_on_all_ranks_at_every_step(four, local):  # T13
    check(four.run(train, 40, local, timeout=120), 40, local)


@pytest.mark.prove
@pytest.mark.timeout(1800)
def test_scales_and_parameters_are_identical_over_500_steps(four):  # T13
    """The record is docs/proofs/scaling-500-steps.json."""
    runs = {}
    for name, local in (("all reduced", False), ("a layer of its own", True)):
        found = four.run(train, 500, local, timeout=800)
        check(found, 500, local)
        seen = found[0]["seen"]
        steps = zip(*(rank["seen"] for rank in found), strict=True)
        runs[name] = {
            "skipped_steps": sum(skip for skip, *_ in seen),
            "overflows_by_rank": [rank["mine"] for rank in found],
            "scales_seen": sorted({scale for _, scale, _ in seen}),
            "agreements_by_rank": [rank["agreements"] for rank in found],
            "digest_of_parameters_after_the_last_step": seen[-1][2],
            "steps_in_which_ranks_differ": sum(len(set(step)) > 1 for step in steps),
        }
    records.write("scaling-500-steps", ranks=4, steps=500, loss_scale="init=1024, interval=5", runs=runs)
