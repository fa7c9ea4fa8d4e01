"""How the suite trains: the loops that several of its files share."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import accel
from accel.testing.models import data, mlp, rivals, sgd, values


def init(name: str, **arguments: Any) -> Any:
    return accel.init(backend=name, **{"timeout": 30.0, **arguments})


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


def adversaries(session: Any) -> list[torch.Tensor]:
    """Two models that alternate, each loss running through both, with no zero_grad anywhere."""
    generator, critic = rivals()
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
    g, c = rivals()
    opt_g, opt_c = sgd(g, momentum=0.9), sgd(c, momentum=0.9)
    for i in range(4):
        noise, real = (
            torch.cat(parts) for parts in zip(*(data(4, seed=10 * r + i) for r in range(ranks)), strict=True)
        )
        _plain_step(c(g(noise).detach()).mean() - c(real).mean(), opt_c, opt_g, opt_c)
        _plain_step(-c(g(noise)).mean(), opt_g, opt_g, opt_c)
    return values(g) + values(c)
