"""The largest batch of a ResNet on emulated NPUs: planned, searched, and run ten times; a program.

    accel emulate npu --hbm 2GiB -- python tests/prove/largest_batch.py resnet50 64
    accel emulate npu --hbm 2GiB -- accel launch --nproc 2 tests/prove/largest_batch.py resnet50 64

The arguments are the model, the side of the images in px and, for another precision than fp32, its name. The last line
is a JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import accel
from accel import models, plan

CLASSES, RUNS, AROUND = 10, 10, 16
MODELS = {"resnet18": models.resnet18, "resnet50": models.resnet50}


def optimizer(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)


def main(model_name: str, size: int, precision: str = "fp32") -> None:
    def loss_of(model: Any, batch: int, device: Any = "cpu") -> torch.Tensor:
        images = torch.zeros(batch, 3, size, size, device=device)
        labels = torch.zeros(batch, dtype=torch.int64, device=device)
        return cross_entropy(model(images).float(), labels)

    with accel.init(precision=precision, timeout=3600) as session:
        memory = session.backend.memory
        total = memory.stats().total
        assert total is not None  # of an allocator
        planned = plan.plan(
            lambda: MODELS[model_name](CLASSES),
            loss_of,
            batch=32,
            optimizer=optimizer,
            precision=precision,
            devices=session.world_size,
            memory=total,
            allocator=memory.allocator,
            headroom=0,
        ).largest_batch
        guess = planned or 1
        session.print(f"HBM {total} bytes; planned {guess}")
        net = MODELS[model_name](CLASSES)
        model, sgd = session.prepare(net, optimizer(net.parameters()))

        def step(batch: int) -> None:
            with session.autocast():
                loss = loss_of(model, batch, session.device)
            session.backward(loss)
            session.step(sgd)

        found = accel.find_batch_size(step, guess, session=session, least=max(1, guess - AROUND), most=guess + AROUND)
        succeeded = 0
        for _ in range(RUNS):
            step(found.batch)
            session.backend.device.synchronize()
            succeeded += 1
        result = {
            "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
            "origin": session.backend.origin,
            "versions": session.backend.versions,
            "work": f"{model_name}, {size} px, {precision}, SGD with momentum, {session.world_size} rank(s)",
            "ranks": session.world_size,
            "hbm": total,
            "planned": planned,
            "found": found.batch,
            "too_large": found.too_large,
            "trials": [trial._asdict() for trial in found.trials],
            "runs_that_succeeded": succeeded,
        }
        session.print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
