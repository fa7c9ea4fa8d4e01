"""What the ranks of the XLA tests run; top-level functions, since they are sent to other processes."""

from __future__ import annotations

import time

import torch
from torch import nn

import accel
from accel.errors import CollectiveError, UnsupportedError
from accel.testing.models import data, mlp, sgd, values

BATCH = 8


def loss_of(model, x, y):
    return nn.functional.mse_loss(model(x), y)


def collectives():
    """Every operation once, on values that tell the ranks apart."""
    with accel.init(timeout=30.0) as s:
        c, rank, size = s.backend.collective, s.rank, s.world_size
        assert (s.local_rank, s.local_world_size) == (rank, size)

        def mine():
            return torch.tensor([rank + 1.0, rank + 2.0], device=s.device)

        found = {}
        for op in ("sum", "mean", "min", "max", "product"):
            t = mine()
            result = c.all_reduce(t, op).result()
            found[op] = (t.tolist(), result is t)
        half = torch.tensor([rank + 1.0], dtype=torch.bfloat16, device=s.device)
        found["bf16"] = c.all_reduce(half).result().tolist()
        work = c.all_reduce(mine(), async_op=True)
        found["async"] = work.result().tolist()
        found["all_gather"] = c.all_gather(mine()).result().tolist()
        rows = (torch.arange(2.0 * size) + rank).to(s.device)
        found["reduce_scatter"] = c.reduce_scatter(rows).result().tolist()
        found["least"] = c.reduce_scatter(rows, "min").result().tolist()
        found["broadcast"] = c.broadcast(mine(), src=1).result().tolist()
        found["unlike NaN"] = (
            c.broadcast(torch.tensor([1.0 if rank == 0 else float("nan")], device=s.device), src=0).result().tolist()
        )
        found["all_to_all"] = c.all_to_all((torch.arange(float(size)) + 10 * rank).to(s.device)).result().tolist()
        found["objects"] = c.all_gather_object({"rank": rank})
        refused = []
        for call in (
            lambda: c.send(mine(), (rank + 1) % size),
            lambda: c.recv(mine(), (rank + 1) % size),
            lambda: c.new_group(range(size - 1)) if size > 2 else c.send(mine(), (rank + 1) % size),
        ):
            try:
                call()
            except UnsupportedError as error:
                refused.append(str(error))
        found["refused"] = refused
        return found


def train(steps, accumulate=1, clip=None):
    """Each rank takes its part of every batch; graphs run in the last step are counted on rank 0."""
    with accel.init(timeout=30.0, accumulate=accumulate, clip_norm=clip) as s:
        called, optimizer = s.prepare(model := mlp(seed=s.rank), sgd(model, momentum=0.9))
        x, y = data(BATCH * accumulate)
        parts = list(zip(x.chunk(s.world_size * accumulate), y.chunk(s.world_size * accumulate), strict=True))
        mine = parts[s.rank * accumulate : (s.rank + 1) * accumulate]
        compiles = []
        for xb, yb in s.batches(mine * steps):
            s.backward(loss_of(called, xb, yb))
            if s.step(optimizer).boundary:
                compiles.append(s.backend.device.counters()["compiles"])
        s.barrier()
        return values(s.unwrap(called)), compiles


def late(missing):
    """Rank `missing` does not come to a barrier, and has not left either; what the others are told."""
    with accel.init(timeout=30.0) as s:
        try:
            if s.rank != missing:
                s.barrier(timeout=1.0)
            else:
                time.sleep(2.5)
        except CollectiveError as error:
            return str(error)
        return "passed"


def fails_inside_a_step(at):
    """Rank 1 fails between the gradients' reduction and the cut, where the others already wait to run the graph."""
    try:
        with accel.init(timeout=30.0) as s:
            called, optimizer = s.prepare(model := mlp(), sgd(model))
            steps = []

            def hook(*_):
                steps.append(1)
                if s.rank == 1 and len(steps) == at:
                    raise ValueError("the hook is broken")

            optimizer.register_step_pre_hook(hook)
            for x, y in s.batches([data(BATCH)] * 4):
                s.backward(loss_of(called, x, y))
                s.step(optimizer)
    except (CollectiveError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def saves(path, who):
    """Save right after a step on all ranks, on one, or where the ranks' own metric says so."""
    with accel.init(timeout=20.0) as s:
        called, optimizer = s.prepare(model := mlp(), sgd(model))
        for x, y in s.batches([data(BATCH)] * 2):
            s.backward(loss_of(called, x, y))
            s.step(optimizer)
        metric = float(s.rank)
        if who == "all" or (who == "metric" and metric > 0) or who == str(s.rank):
            s.save(path, model=called, optimizer=optimizer)
        s.barrier()
        return values(s.unwrap(called))


def streams():
    """The weights that a session begins with, and two dropout masks."""
    with accel.init(seed=5) as s:
        model = s.prepare(mlp(seed=s.rank))
        ones = torch.ones(64, device=s.device)
        masks = []
        for _ in range(2):
            masks.append(nn.functional.dropout(ones).tolist())
            s.backend.device.flush()
        return [v.tolist() for v in values(s.unwrap(model))], masks


def spmd(steps):
    """Losses and weights of the global batch on all devices of one process."""
    with accel.init() as s:
        called, optimizer = s.prepare(model := mlp(), sgd(model, momentum=0.9))
        losses, sharding = [], ""
        import torch_xla

        for x, y in s.batches([data(BATCH, seed=i) for i in range(steps)]):
            sharding = torch_xla._XLAC._get_xla_sharding_spec(x)
            loss = loss_of(called, x, y)
            s.backward(loss)
            s.step(optimizer)
            losses.append(loss.item())
        return s.world_size, sharding, losses, values(s.unwrap(called))
