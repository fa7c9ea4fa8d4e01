"""Contract of checkpoints of two ranks.

Each test runs one top-level function in two warm ranks; what it returns comes back by rank.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from accel.testing.models import data, mlp, sgd, values
from accel.testing.ranks import RankPool
from accel.testing.training import init, loss_of


def _save(name: str, path: str, who: str) -> Any:
    with init(name, timeout=20.0) as s:
        model = mlp()
        called, optimizer = s.prepare(model, sgd(model, momentum=0.9))
        dataset = TensorDataset(*data(16))
        loader = DataLoader(dataset, batch_size=2, sampler=s.sampler(dataset))
        seen = []
        for i, (x, y) in enumerate(s.batches(loader, epoch=0)):
            seen.append(float(x.sum()))
            s.backward(loss_of(called, x, y))
            s.step(optimizer)
            if i == 1:
                break
        if who == "all" or s.rank == int(who):
            s.save(path, model=called, optimizer=optimizer)
        s.barrier()
        return seen, torch.rand(1, device=s.device).item()


def _load(name: str, path: str) -> Any:
    with init(name, timeout=20.0, seed=99) as s:
        model = mlp(7)
        called, optimizer = s.prepare(model, sgd(model, momentum=0.9))
        s.load(path, model=called, optimizer=optimizer)
        after = torch.rand(1, device=s.device).item()  # ranks may share the host's generator
        dataset = TensorDataset(*data(16))
        s._seed = 0  # the sampler's order is the saved run's
        loader = DataLoader(dataset, batch_size=2, sampler=s.sampler(dataset))
        return (
            [float(x.sum()) for x, _ in s.batches(loader, epoch=0)],
            after,
            [v.tolist() for v in values(s.unwrap(called))],
        )


def test_checkpoint_of_all_ranks_resumes_each_rank_where_it_was(
    ranks: RankPool, backend_name: str, tmp_path: Path
) -> None:  # T52
    saved = ranks.run(_save, backend_name, str(tmp_path / "c"), "all")
    loaded = ranks.run(_load, backend_name, str(tmp_path / "c"))
    inputs = sorted(float(x.sum()) for x in data(16)[0].split(1))
    assert len(inputs) == 16
    for (seen, number), (rest, after, _) in zip(saved, loaded, strict=True):
        assert number == after
        assert len(seen) == len(rest) == 2
        assert not set(seen) & set(rest)
    assert loaded[0][2] == loaded[1][2]


@pytest.mark.parametrize("who", ["0", "1"])
def test_save_on_one_rank_only_returns(ranks: RankPool, backend_name: str, tmp_path: Path, who: str) -> None:  # T58
    ranks.run(_save, backend_name, str(tmp_path / "c"), who, timeout=30.0)
    assert (tmp_path / "c").exists() is (who == "0")


def _resumed(name: str, path: str) -> int:
    with init(name, timeout=20.0) as s:
        called = s.prepare(mlp())
        s.load(path, model=called)
        dataset = TensorDataset(*data(16))
        return len(list(s.batches(DataLoader(dataset, batch_size=2, sampler=s.sampler(dataset)), epoch=0)))


def test_checkpoint_without_a_ranks_part_starts_the_epoch_anew_on_every_rank(
    ranks: RankPool, backend_name: str, tmp_path: Path
) -> None:
    ranks.run(_save, backend_name, str(tmp_path / "c"), "0")
    assert ranks.run(_resumed, backend_name, str(tmp_path / "c")) == [4, 4]


def test_checkpoint_of_two_ranks_loads_in_one_with_a_word_on_what_is_lost(
    ranks: RankPool, backend_name: str, start: Any, tmp_path: Path, caplog: Any
) -> None:  # T52
    ranks.run(_save, backend_name, str(tmp_path / "c"), "all")
    session = start()
    model = mlp(7)
    called, optimizer = session.prepare(model, sgd(model, momentum=0.9))
    session.load(tmp_path / "c", model=called, optimizer=optimizer)
    assert "saved with 2 rank(s), loaded with 1" in caplog.text
    session.save(tmp_path / "one", model=called, optimizer=optimizer)
    again = ranks.run(_load, backend_name, str(tmp_path / "one"))
    assert again[0][2] == [v.tolist() for v in values(session.unwrap(called))] == again[1][2]
