"""The published table of collectives says of this backend what its code does."""

from __future__ import annotations

from tests.tables import check_collectives


def test_the_published_table_of_collectives_is_what_the_backend_says() -> None:
    check_collectives("npu")
