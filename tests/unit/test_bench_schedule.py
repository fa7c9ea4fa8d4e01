"""The benchmark's learning rate: linear warm-up, half a cosine, and no step that trains nothing."""

from __future__ import annotations

import math

import pytest

from accel.bench._train import WARM_UP, share


@pytest.mark.parametrize("total", [1, 2, 7, 16, 500])
def test_every_step_trains_those_of_an_extended_warm_up_too(total: int) -> None:
    rates = [share(step, total) for step in range(3 * total)]
    assert all(0 < rate <= 1 for rate in rates)
    assert max(rates) == 1.0
    assert set(rates[total:]) == {rates[total - 1]}


def test_it_is_the_recipe_within_its_steps() -> None:
    total = 100
    warm = round(WARM_UP * total)
    assert [share(step, total) for step in range(warm)] == [(step + 1) / warm for step in range(warm)]
    middle = warm + (total - warm) // 2
    assert share(middle, total) == pytest.approx(0.5 + 0.5 * math.cos(math.pi * (middle - warm) / (total - warm)))
