"""Options and fixtures of the conformance suite: which backend it runs against, sessions that are closed, warm
ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accel.testing.ranks import RankPool

__all__ = ["backend", "backend_name", "pytest_addoption", "ranks", "start"]


def pytest_addoption(parser: pytest.Parser) -> None:
    with contextlib.suppress(
        ValueError
    ):  # two conftest files may bring it in one run: the suite's own and that of its user
        parser.addoption("--backend", default="cpu", help="registered accel backend to test (default: cpu)")


@pytest.fixture(scope="session")
def backend_name(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--backend"))


@pytest.fixture
def backend(backend_name: str) -> Any:
    """The backend under test, without a session."""
    import accel

    return accel.get_backend(backend_name)


@pytest.fixture
def start(backend_name: str) -> Iterator[Callable[..., Any]]:
    """`accel.init` on the backend under test; sessions are closed at the end of the test."""
    import accel

    sessions = []

    def begin(**arguments: Any) -> Any:
        sessions.append(accel.init(backend=backend_name, **arguments))
        return sessions[-1]

    yield begin
    for session in reversed(sessions):
        session.close()


@pytest.fixture(scope="session")
def ranks(backend_name: str) -> Iterator[RankPool]:
    """Two warm ranks; `ranks.run(function, *arguments)` calls a top-level function on both.

    Skips with the table's own reason on a backend without several processes.
    """
    import accel

    cell = accel.get_backend(backend_name).capabilities()["collective.processes"]
    if not cell.available:
        pytest.skip(f"unsupported by the capability table: {cell.why}")
    with RankPool(2, backend=backend_name) as pool:
        yield pool
