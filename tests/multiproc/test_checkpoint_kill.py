"""`kill -9` during `save`: the directory loads completely as before or as after, every time.

Importing torch takes seconds, so one helper process imports it once, stays single-threaded, and forks a saver a kill.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TIMEOUT_S = 150  # for the helper; it needs about 10 s
FIRST = 1000  # generation of the checkpoint that is there before a saver starts


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What each experiment of the helper process counted."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    environment = {**os.environ, **one_thread, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, __file__, str(tmp_path_factory.mktemp("kill"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.timeout(TIMEOUT_S + 30)
def test_fifty_random_kills(results: Any) -> None:  # T56
    assert results["random"]["kills"] == 50
    assert results["random"]["saves"] > 50  # the savers were really saving, not starting


@pytest.mark.timeout(TIMEOUT_S + 30)
def test_kill_before_every_system_call_that_changes_the_disk(results: Any) -> None:  # T56
    assert results["every"]["before"] > 10
    assert results["every"]["after"] > 10
    assert results["every"]["recovered"] >= 1  # the window between the two renames was among them


# --- the helper process


def put(path: Path, generation: int) -> None:
    """Alternately small and large, so that what is replaced differs in size and content everywhere."""
    import torch

    from accel._checkpoint import save

    size = 3 if generation % 2 else 5000
    objects = {"model": {"weight": torch.full((size,), float(generation))}, "step": generation}
    ranks = {rank: {"position": generation} for rank in range(2)}
    save(path, objects, ranks=ranks, meta={"generation": generation})


def generation_of(path: Path) -> int:
    """Generation of the checkpoint at `path`, found the same in all its parts."""
    import torch

    from accel._checkpoint import read

    back = read(path)
    generation: int = back.meta["generation"]
    size = 3 if generation % 2 else 5000
    assert back.objects["step"] == generation
    assert torch.equal(back.objects["model"]["weight"], torch.full((size,), float(generation)))
    assert back.ranks == {rank: {"position": generation} for rank in range(2)}
    return generation


def fork(child: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child()
            code = 0
        finally:
            os._exit(code)
    return pid


def random_kills(folder: Path) -> dict[str, int]:
    path = folder / "last"
    put(path, FIRST)
    chance = random.Random(0)
    last = FIRST
    for _ in range(50):
        reader, writer = os.pipe()

        def save_on(first: int = last + 1, writer: int = writer) -> None:
            for generation in range(first, first + 100_000):
                put(path, generation)
                os.write(writer, generation.to_bytes(8, "little"))

        pid = fork(save_on)
        os.close(writer)
        reported = int.from_bytes(os.read(reader, 8), "little")  # warm: one save is done
        time.sleep(chance.uniform(0, 0.05))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while data := os.read(reader, 8):
            reported = int.from_bytes(data, "little")
        os.close(reader)
        found = generation_of(path)
        assert found in (reported, reported + 1), (found, reported)  # as before the save that was killed, or as after
        last = found
    put(path, last + 1)
    assert [entry.name for entry in folder.iterdir()] == ["last"]
    return {"kills": 50, "saves": last - FIRST}


def kill_before_every_call(folder: Path) -> dict[str, int]:
    """Kill savers before the first, second, ... call that opens, makes, renames or removes something in `folder`."""
    counts = {"before": 0, "after": 0, "recovered": 0}
    finished = False
    number = 0
    while not finished:
        place = folder / str(number)
        path = place / "last"
        put(path, FIRST)

        def save_until_killed(path: Path = path, place: Path = place, left: int = number) -> None:
            def watch(event: str, arguments: tuple[Any, ...]) -> None:
                nonlocal left
                if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"):
                    name = "/" if isinstance(arguments[0], int) else os.fspath(arguments[0])
                    left -= str(place) in name or os.sep not in name  # rmtree names entries relative to a descriptor
                    if left < 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(watch)
            put(path, FIRST + 1)

        _, status = os.waitpid(fork(save_until_killed), 0)
        assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
        finished = status == 0
        counts["recovered"] += not path.exists()
        counts["before" if generation_of(path) == FIRST else "after"] += 1
        put(path, FIRST + 2)
        assert generation_of(path) == FIRST + 2
        assert [entry.name for entry in place.iterdir()] == ["last"]
        number += 1
    return counts


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "random").mkdir()
    print(json.dumps({"random": random_kills(folder / "random"), "every": kill_before_every_call(folder / "every")}))
