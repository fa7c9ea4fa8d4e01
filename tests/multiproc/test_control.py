"""The control plane: barriers that name the missing, objects without pickle, agreements, abort, and connecting."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from accel._store import connect
from accel.control import ControlPlane
from accel.errors import ArgumentError, CollectiveError, CollectiveTimeout, EncodingError, LaunchError
from accel.rendezvous import Rendezvous
from accel.testing.ranks import RankPool, free_port
from tests.multiproc.jobs import control_plane


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as ranks:
        yield ranks


def _barrier_with_a_late_rank() -> None:
    with control_plane() as control:
        for _ in range(20):
            control.barrier()
        if control.rank == 0:
            began = time.monotonic()
            with pytest.raises(
                CollectiveTimeout, match=r"barrier 21 timed out after 0.5 s on rank 0: rank 1 did not come"
            ):
                control.barrier(timeout=0.5)
            assert 0.4 < time.monotonic() - began < 5.0
        else:
            time.sleep(1.0)
            control.barrier()
        control.barrier()


def test_barrier_names_the_rank_that_did_not_come(pool: RankPool) -> None:  # T38
    pool.run(_barrier_with_a_late_rank)


def _timeouts() -> None:
    with control_plane() as control:
        for bad in (0, -1, float("nan"), float("inf"), True, "2"):
            with pytest.raises(ArgumentError, match="timeout is"):
                control.barrier(timeout=bad)  # type: ignore[arg-type]
        control.barrier()


def test_unusable_timeouts_are_refused_before_anything_is_sent(pool: RankPool) -> None:  # T38
    pool.run(_timeouts)


class _Marker:
    """Creates a file when unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


def _objects(marker: str) -> None:
    with control_plane() as control:
        mine = {"rank": control.rank, "list": [1, 2.5, None, "x"], "tensor": torch.full((2,), float(control.rank))}
        got = control.all_gather_object(mine)
        assert [g["rank"] for g in got] == [0, 1]
        assert got[1]["tensor"].tolist() == [1.0, 1.0]
        assert control.broadcast_object(mine if control.rank else None, src=1)["rank"] == 1
        big, small = control.all_gather_object(b"x" * (5_000_000 if control.rank == 0 else 5))
        assert (len(big), len(small)) == (5_000_000, 5)
        with pytest.raises(
            EncodingError if control.rank == 1 else CollectiveError, match="Marker" if control.rank == 1 else "rank 1"
        ):
            control.all_gather_object(_Marker(marker) if control.rank == 1 else 1)
        with pytest.raises(ArgumentError, match="src is 2"):
            control.broadcast_object(1, src=2)
        assert control.all_gather_object(control.rank) == [0, 1]
    assert not Path(marker).exists()


def test_objects_travel_without_pickle_and_sizes_may_differ(pool: RankPool, tmp_path: Path) -> None:  # T36
    pool.run(_objects, str(tmp_path / "marker"))


def _too_large() -> None:
    with control_plane(max_bytes=10_000) as control:
        with pytest.raises(ArgumentError, match=r"rank 1 takes 2\d{4} bytes, above the limit of 10000"):
            control.all_gather_object(b"x" * (20_000 if control.rank == 1 else 1))
        assert control.all_gather_object(control.rank) == [0, 1]


def test_an_object_above_the_limit_is_refused_on_all_ranks(pool: RankPool) -> None:  # T36
    pool.run(_too_large)


def _agreements() -> None:
    with control_plane() as control:
        assert control.any(control.rank == 1) is True
        assert control.any(False) is False
        assert control.min(10 - control.rank) == 9
        # On a thread of its own, while the main thread does something else in another order.
        agreement = control.loader_agreement()
        results: list[int] = []
        thread = threading.Thread(target=lambda: results.extend(agreement.min(i + control.rank) for i in range(50)))
        if control.rank == 0:
            thread.start()
        for i in range(20):
            assert control.min(i) == i
        if control.rank == 1:
            thread.start()
        control.barrier()
        thread.join(20)
        assert results == list(range(50))
        agreement.close()


def test_agreements_work_on_a_second_thread_in_their_own_order(pool: RankPool) -> None:
    pool.run(_agreements)


def _abort(how: str) -> None:
    with control_plane() as control:
        control.barrier()
        if control.rank == 1:
            control.abort("ValueError: the loss is a turnip")
            return
        with pytest.raises(CollectiveError, match="rank 1 aborted: ValueError: the loss is a turnip"):
            control.barrier() if how == "barrier" else control.min(1)


@pytest.mark.parametrize("how", ["barrier", "min"])
def test_abort_reaches_a_rank_that_waits(pool: RankPool, how: str) -> None:
    pool.run(_abort, how)


def test_world_size_one_needs_no_store() -> None:
    control = ControlPlane(None, 0, 1, 5.0)
    control.barrier()
    assert control.all_gather_object({"a": (1, 2)}) == [{"a": (1, 2)}]
    assert control.broadcast_object("x") == "x"
    assert (control.any(True), control.min(3), control.loader_agreement().min(4)) == (True, 3, 4)
    with pytest.raises(EncodingError):
        control.all_gather_object(lambda: 0)
    control.abort("nobody hears")
    control.close()
    with pytest.raises(ArgumentError, match="needs a store"):
        ControlPlane(None, 0, 2)


def _environ(port: int) -> dict[str, str]:
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def test_a_lone_rank_says_that_its_peers_never_came() -> None:  # T40
    store = connect(Rendezvous(0, 2), 1.0, _environ(free_port()))
    with pytest.raises(CollectiveTimeout, match=r"rank 1 of 2 never came"):
        ControlPlane(store, 0, 2, 1.0)


def test_a_rank_without_rank_0_says_so() -> None:  # T40
    with pytest.raises(CollectiveTimeout, match=r"rank 1 of 2 found nobody at .*: rank 0 never came"):
        connect(Rendezvous(1, 2), 1.0, _environ(free_port()))


def test_a_busy_port_is_named_and_another_one_works() -> None:  # T41
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        with pytest.raises(LaunchError, match=f"MASTER_PORT={port}.*Set MASTER_PORT to a free port"):
            connect(Rendezvous(0, 2), 5.0, _environ(port))
    connect(Rendezvous(0, 2), 5.0, _environ(free_port()))


def test_connections_to_one_store_have_key_spaces_of_their_own() -> None:
    environ = _environ(free_port())
    first, second = (connect(Rendezvous(0, 2), 5.0, environ) for _ in range(2))
    first.set("key", "1")
    assert not second.check(["key"])


@pytest.mark.parametrize("port", ["", "0", "70000", "http"])
def test_unusable_ports_are_refused(port: str) -> None:  # T40
    with pytest.raises(LaunchError, match="MASTER_PORT"):
        connect(Rendezvous(0, 2), 1.0, {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})


def _torchrun_style_store(port: str) -> int:
    """Under torchrun the agent holds the store, and every rank is a client."""
    os.environ["MASTER_PORT"] = port
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    try:
        with control_plane() as control:
            return control.min(control.rank)
    finally:
        del os.environ["TORCHELASTIC_USE_AGENT_STORE"]


def test_the_agents_store_is_used_under_torchrun(pool: RankPool) -> None:
    from torch.distributed import TCPStore

    agent = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert pool.run(_torchrun_style_store, str(agent.port)) == [0, 0]
    assert pool.run(_torchrun_style_store, str(agent.port)) == [0, 0]
