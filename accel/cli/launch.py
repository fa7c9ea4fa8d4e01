"""`accel launch`: start a script as several ranks, on this host or as this host's part of a job.

torch's elastic agent starts, watches and ends the processes; it holds the store on a port that was free, so several
jobs on one host do not meet. When one rank fails the others are ended and its exit code is the command's, unless
restarts are left: then all ranks start anew. A backend whose ranks are no such processes (XLA's replicas) starts them
itself.
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import tempfile
import uuid
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from accel import _script
from accel.errors import ArgumentError, LaunchError

_BY_SIGNAL = 128  # a shell's exit code for "ended by signal n" is 128 + n
# Seconds that torch's agent gives the ranks to end once it is told to end itself (30); after a rank's failure it gives
# the others 30 s whatever is set here (torch 2.13).
_ENDING = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"


def launch(
    script: Annotated[str, typer.Argument(help="Python file to run, or a module with -m.")],
    args: Annotated[list[str] | None, typer.Argument(help="Arguments of the script.")] = None,
    nproc: Annotated[int, typer.Option("--nproc", "-n", help="Processes on this host; one a device.")] = 1,
    nnodes: Annotated[
        str, typer.Option(help="Hosts of the job, each of which runs this command; MIN:MAX for an elastic job.")
    ] = "1",
    rendezvous: Annotated[str, typer.Option(help="HOST:PORT where the hosts meet; needed with --nnodes above 1.")] = "",
    max_restarts: Annotated[int, typer.Option(help="How often all ranks start anew after one failed.")] = 0,
    join_timeout: Annotated[float, typer.Option(help="Seconds that the hosts wait for each other.")] = 600.0,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module, as in python -m.")] = False,
) -> None:
    """Run SCRIPT as several processes that know of each other."""
    if nproc < 1:
        raise ArgumentError(f"--nproc is {nproc}; expected at least 1")
    if max_restarts < 0:
        raise ArgumentError(f"--max-restarts is {max_restarts}; expected 0 or more")
    if not join_timeout > 0:
        raise ArgumentError(f"--join-timeout is {join_timeout:g}; expected a positive number of seconds")
    fewest, most = _hosts(nnodes)
    if not module and not Path(script).is_file():
        raise ArgumentError(
            f"script {script!r} is not a file; give the path of a Python file, or a module name with -m"
        )
    host, colon, port = rendezvous.rpartition(":")
    if most > 1 and not (host and colon and port.isdecimal()):
        raise ArgumentError(f"--rendezvous is {rendezvous!r}; --nnodes {nnodes} needs HOST:PORT, the same on all hosts")
    if most == 1 and rendezvous:
        raise ArgumentError(f"--rendezvous is {rendezvous!r}, but --nnodes is 1: a single host finds its own free port")
    from accel import registry

    replicas = getattr(registry.decided(), "run_replicas", None)
    if nproc > 1 and replicas is not None:
        if max_restarts:
            raise ArgumentError(
                f"--max-restarts is {max_restarts}, but this backend's ranks share a process that cannot be started "
                "anew: leave it out, and start the command again from a checkpoint"
            )
        if most > 1:
            raise ArgumentError(
                f"--nnodes is {nnodes}, but this backend's hosts find each other by their own environment: run "
                f"`accel launch --nproc {nproc}` on each of them"
            )
        _end(replicas(partial(run_script, script, list(args or []), module), nproc))
    command = ["-u", *(["-m"] if module else []), script, *(args or [])]
    raise typer.Exit(run_ranks(command, nproc, (fewest, most), rendezvous, max_restarts, join_timeout))


def _hosts(text: str) -> tuple[int, int]:
    """The fewest and the most hosts that `--nnodes` asks for."""
    fewest, _, most = text.partition(":")
    numbers = [fewest, most or fewest]
    if not all(number.isdecimal() and int(number) > 0 for number in numbers) or int(numbers[0]) > int(numbers[1]):
        raise ArgumentError(f"--nnodes is {text!r}; expected a number of hosts from 1, or MIN:MAX such as 2:4")
    return int(numbers[0]), int(numbers[1])


def run_script(script: str, args: list[str], module: bool, index: int) -> None:
    """Run SCRIPT as the main program of one replica, which may be a thread."""
    if not module:
        _script.run(script, args, looked_up=index == 0)
        return
    sys.argv = [script, *args]
    runpy.run_module(script, run_name="__main__")


def _end(code: int) -> None:
    """End the process at once: after a failure a replica may still run, and no thread of it can be stopped."""
    if code:
        print("accel launch: a replica failed; the others were ended", file=sys.stderr)  # noqa: T201
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_ranks(
    command: list[str],
    nproc: int,
    hosts: tuple[int, int] = (1, 1),
    rendezvous: str = "",
    max_restarts: int = 0,
    join_timeout: float = 600.0,
) -> int:
    """Run `python COMMAND` as `nproc` ranks on this host; the exit code of the first that failed, or 0.

    `hosts`: the fewest and the most of the job, which meet at `rendezvous`. Raises `LaunchError` where they do not.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.rendezvous.api import RendezvousError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from accel._agent import AgentWatch
    from accel._threads import available_cores

    # torchrun would say 1, a bare spawn all cores: a CPU baseline must not depend on the launcher (T74).
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // nproc)))
    os.environ.setdefault(_ENDING, "10")
    with tempfile.TemporaryDirectory(prefix="accel-launch-") as logs:
        config = LaunchConfig(
            min_nodes=hosts[0],
            max_nodes=hosts[1],
            nproc_per_node=nproc,
            run_id=rendezvous or uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint=rendezvous or "localhost:0",
            local_addr="localhost" if hosts[1] == 1 else None,
            rdzv_configs={"join_timeout": join_timeout, "timeout": join_timeout},
            logs_specs=DefaultLogsSpecs(log_dir=logs),
            max_restarts=max_restarts,
        )
        try:
            with contextlib.nullcontext() if hosts[1] == 1 else AgentWatch(rendezvous):
                elastic_launch(config, sys.executable)(*command)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            code = failure.exitcode
            how = f"ended by {failure.signal_name()}" if code < 0 else f"exit code {code}"
            print(f"accel launch: rank {rank} failed first: {how}; the others were ended", file=sys.stderr)  # noqa: T201
            return _BY_SIGNAL - code if code < 0 else code
        except RendezvousError as error:
            raise LaunchError(
                f"the hosts did not meet at --rendezvous {rendezvous or 'localhost'} within {join_timeout:g} s "
                f"({type(error).__name__}: {' '.join(str(error).split())}): start this command on every host, and "
                "check that the first one is reachable at this name and that the port is free there"
            ) from error
        except SignalException as error:
            return _BY_SIGNAL + int(error.sigval)
    return 0
