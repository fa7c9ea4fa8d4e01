"""The largest batch of ResNet-50 at 64 px on emulated NPUs: planned, searched, and run ten times; a program.

    accel emulate npu --hbm 2GiB -- python tests/prove/largest_batch.py search
    accel emulate npu --hbm 2GiB -- accel launch --nproc 2 tests/prove/largest_batch.py search
    accel emulate npu --hbm 2GiB -- python tests/prove/largest_batch.py run 200      # in a fresh process

`search` prints a JSON object on its last line; `run BATCH` trains ten steps and exits with 3 when memory runs out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import accel
from accel import models, plan

SIZE, CLASSES, RUNS, AROUND = 64, 10, 10, 40


def optimizer(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)


def loss_of(model: Any, batch: int, device: Any = "cpu") -> torch.Tensor:
    images = torch.zeros(batch, 3, SIZE, SIZE, device=device)
    labels = torch.zeros(batch, dtype=torch.int64, device=device)
    return cross_entropy(model(images).float(), labels)


def main(task: str, batch: int) -> int:
    with accel.init(timeout=3600) as session:
        total = session.backend.memory.stats().total
        net = models.resnet50(CLASSES)
        model, sgd = session.prepare(net, optimizer(net.parameters()))

        def step(size: int) -> None:
            session.backward(loss_of(model, size, session.device))
            session.step(sgd)

        if task == "run":
            try:
                for _ in range(RUNS):
                    step(batch)
                session.backend.device.synchronize()
            except RuntimeError as error:
                if not session.backend.memory.is_oom(error):
                    raise
                return 3
            return 0
        assert total is not None  # of an allocator
        planned = plan.plan(
            lambda: models.resnet50(CLASSES),
            loss_of,
            batch=32,
            optimizer=optimizer,
            memory=total,
            allocator=session.backend.memory.allocator,
            headroom=0,
        )
        guess = planned.largest_batch or 1
        session.print(f"HBM {total} bytes; planned {guess}")
        found = accel.find_batch_size(step, guess, session=session, least=max(1, guess - AROUND), most=guess + AROUND)
        succeeded = 0
        for _ in range(RUNS):
            step(found.batch)
            session.backend.device.synchronize()
            succeeded += 1
        result = {
            "ranks": session.world_size,
            "hbm": total,
            "planned": planned.largest_batch,
            "found": found.batch,
            "too_large": found.too_large,
            "trials": [trial._asdict() for trial in found.trials],
            "runs_that_succeeded": succeeded,
            "versions": session.backend.versions,
        }
        session.print(json.dumps(result))
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0))
