"""What the launcher says of this process: rank, world size and where the ranks meet.

Reads the environment only, imports no torch and connects to nothing. Partial or nonsensical variables give one error
that lists every missing or bad name (T40).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from accel.errors import LaunchError

REQUIRED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
# Variables by which other launchers say that they started several processes: the size, and this process's rank.
FOREIGN = (("OMPI_COMM_WORLD_SIZE", "mpirun"), ("PMI_SIZE", "mpiexec"), ("SLURM_STEP_NUM_TASKS", "srun"))
HOW = "Start several processes with `accel launch --nproc N SCRIPT`; unset all of these to run one"


@dataclass(frozen=True)
class Rendezvous:
    """This process's place. `local_rank` and `local_world_size` are None when the launcher does not say them."""

    rank: int = 0
    world_size: int = 1
    local_rank: int | None = 0
    local_world_size: int | None = 1
    launched: bool = False
    master: str | None = None  # "host:port"
    device: int | None = None  # index of its device in this process; None: that of the local rank


def read(environ: Mapping[str, str] = os.environ) -> Rendezvous:
    """The place that the environment gives; a single process when it says nothing. Raises `LaunchError`."""
    given = {name: environ[name] for name in REQUIRED if environ.get(name, "").strip()}
    if not given:
        _refuse_foreign_launcher(environ)
        return Rendezvous()
    if set(given) == {"RANK", "WORLD_SIZE"} and (given["RANK"].strip(), given["WORLD_SIZE"].strip()) == ("0", "1"):
        return Rendezvous(launched=True)
    faults = [f"{name} is missing" for name in REQUIRED if name not in given]
    numbers = {
        name: _integer(name, environ, faults)
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
    }
    _check_ranges(numbers, faults)
    if faults:
        found = " ".join(
            f"{name}={environ[name]!r}" for name in (*REQUIRED, "LOCAL_RANK", "LOCAL_WORLD_SIZE") if name in environ
        )
        raise LaunchError(f"the launch variables cannot be used: {'; '.join(faults)} (found {found}). {HOW}")
    rank, world = numbers["RANK"], numbers["WORLD_SIZE"]
    assert rank is not None  # checked above: nothing is missing
    assert world is not None
    alone = world == 1
    return Rendezvous(
        rank=rank,
        world_size=world,
        local_rank=0 if alone and numbers["LOCAL_RANK"] is None else numbers["LOCAL_RANK"],
        local_world_size=1 if alone and numbers["LOCAL_WORLD_SIZE"] is None else numbers["LOCAL_WORLD_SIZE"],
        launched=True,
        master=f"{given['MASTER_ADDR']}:{given['MASTER_PORT']}",
    )


def _refuse_foreign_launcher(environ: Mapping[str, str]) -> None:
    for name, launcher in FOREIGN:
        if environ.get(name, "").isdecimal() and int(environ[name]) > 1:
            raise LaunchError(
                f"{launcher} started {environ[name]} processes ({name}={environ[name]}), but {', '.join(REQUIRED)} "
                f"are missing, so each would train alone. Export them from {launcher}'s own variables, or start one "
                "process a host that runs `accel launch`"
            )


def _integer(name: str, environ: Mapping[str, str], faults: list[str]) -> int | None:
    text = environ.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        faults.append(f"{name}={environ[name]!r} is not a whole number from 0")
        return None
    return int(text)


def _check_ranges(numbers: Mapping[str, int | None], faults: list[str]) -> None:
    rank, world, port = numbers["RANK"], numbers["WORLD_SIZE"], numbers["MASTER_PORT"]
    local, local_world = numbers["LOCAL_RANK"], numbers["LOCAL_WORLD_SIZE"]
    if world == 0:
        faults.append("WORLD_SIZE=0 is not a number of processes")
    elif rank is not None and world is not None and rank >= world:
        faults.append(f"RANK={rank} is not below WORLD_SIZE={world}")
    if local is not None and local_world is not None and local >= local_world:
        faults.append(f"LOCAL_RANK={local} is not below LOCAL_WORLD_SIZE={local_world}")
    if world and local_world is not None and local_world > world:
        faults.append(f"LOCAL_WORLD_SIZE={local_world} is above WORLD_SIZE={world}")
    if port is not None and not 0 < port < 65536:
        faults.append(f"MASTER_PORT={port} is not a port number (1 to 65535)")
