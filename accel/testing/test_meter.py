"""Contract of meters and agreements in one process."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from accel.errors import (
    ArgumentError,
)


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
