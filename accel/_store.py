"""`connect`: the key-value store that the ranks of a job share, on MASTER_ADDR and MASTER_PORT.

Works under torchrun and `accel launch` (whose agent holds the store) and with bare variables (rank 0 holds it). Several
connections one after the other in one process get key spaces of their own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Protocol

from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from accel.errors import CollectiveTimeout, LaunchError

# Rank 0 keeps its servers until the process ends: closing one while a peer already connects anew would strand it.
_servers: dict[tuple[str, int], TCPStore] = {}


class Place(Protocol):
    """What `connect` needs of a rendezvous."""

    @property
    def rank(self) -> int: ...
    @property
    def world_size(self) -> int: ...


def connect(rendezvous: Place, timeout: float, environ: Mapping[str, str] | None = None) -> Store:
    """The store of this job, with a key space that no earlier connection on it has used.

    `timeout` in seconds. Raises `LaunchError` for an unusable address or port, `CollectiveTimeout` when rank 0 never
    came.
    """
    env = os.environ if environ is None else environ
    host, port_text = env.get("MASTER_ADDR", ""), env.get("MASTER_PORT", "")
    if not host or not port_text.isdecimal() or not 0 < int(port_text) < 65536:
        raise LaunchError(
            f"MASTER_ADDR is {host!r} and MASTER_PORT is {port_text!r}; expected a host name and a port "
            "from 1 to 65535. Launch with `accel launch --nproc N script.py`, or set both"
        )
    store = _open(host, int(port_text), rendezvous, timeout, agent=env.get("TORCHELASTIC_USE_AGENT_STORE") == "True")
    attempt = PrefixStore(f"accel/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    connection = attempt.add(f"connections/{rendezvous.rank}", 1)
    return PrefixStore(str(connection), attempt)


def _open(host: str, port: int, rendezvous: Place, timeout: float, agent: bool) -> TCPStore:
    serves = rendezvous.rank == 0 and not agent
    if serves and (host, port) in _servers:
        return _servers[host, port]
    try:
        store = TCPStore(
            host,
            port,
            rendezvous.world_size,
            is_master=serves,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
            multi_tenant=True,
        )
    except RuntimeError as error:
        text = str(error).split("\n", maxsplit=1)[0]
        if serves:
            raise LaunchError(
                f"rank 0 cannot listen on MASTER_PORT={port} ({text}); another job may use it. "
                "Set MASTER_PORT to a free port on all ranks, or use `accel launch`, which picks one"
            ) from error
        if "timed out" in text.lower():
            raise CollectiveTimeout(
                f"rank {rendezvous.rank} of {rendezvous.world_size} found nobody at MASTER_ADDR={host} "
                f"MASTER_PORT={port} within {timeout:g} s: rank 0 never came. Start all ranks, or check address, "
                "port and firewall"
            ) from error
        raise LaunchError(
            f"rank {rendezvous.rank} cannot reach MASTER_ADDR={host} MASTER_PORT={port}: {text}"
        ) from error
    if serves:
        _servers[host, port] = store
    return store
