"""Options and fixtures of the conformance suite: which backend it runs against, sessions that are closed, warm
ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from accel.testing.ranks import RankPool, one_rank_store

__all__ = ["backend", "backend_name", "fabric", "pytest_addoption", "ranks", "start"]


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


@pytest.fixture
def fabric(backend: Any) -> Iterator[Any]:
    """The backend's transport, joined as the only rank; skips with the table's own reason where it takes no ranks."""
    cell = backend.capabilities()["collective.processes"]
    if not cell.available:
        pytest.skip(f"unsupported by the capability table: {cell.why}")
    backend.device.set(0)
    backend.transport.init(one_rank_store(), 0, 1, 30.0, backend.device.torch_device)
    yield backend.transport
    backend.transport.destroy()


@pytest.fixture(scope="session")
def ranks(backend_name: str) -> Iterator[RankPool]:
    """Two warm ranks; `ranks.run(function, *arguments)` calls a top-level function on both.

    Skips with the table's own reason on a backend without several processes, and where two ranks would share a device.
    """
    import accel

    backend = accel.get_backend(backend_name)
    cell = backend.capabilities()["collective.processes"]
    if not cell.available:
        pytest.skip(f"unsupported by the capability table: {cell.why}")
    if backend.device.identity() is not None and backend.device.count() < 2:
        pytest.skip(f"two ranks need two devices; backend {backend_name!r} shows 1 to this process")
    with RankPool(2, backend=backend_name) as pool:
        yield pool
