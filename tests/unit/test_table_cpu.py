"""The published tables say of this backend what its code does."""

from __future__ import annotations

import pytest

from tests.tables import check_collectives, check_dtypes, check_memory


def test_the_published_table_of_collectives_is_what_the_backend_says() -> None:
    check_collectives("cpu")


def test_the_published_table_of_dtypes_is_what_a_step_runs_in() -> None:
    check_dtypes("cpu")


@pytest.mark.parametrize("lane", ["cpu", "cuda"])  # cuda's is what its code declares
def test_the_published_table_of_memory_figures_is_what_the_lane_gives(lane: str) -> None:
    check_memory(lane)
