"""The watch that ranks keep on each other: whoever dies, freezes, leaves or does something else is named by all."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import accel
from accel._signature import Signature
from accel.cli import app
from accel.errors import AccelError, ArgumentError, CollectiveError, CollectiveMismatch, CollectiveTimeout
from accel.testing.ranks import RankPool, outcomes
from tests.multiproc.jobs import collective, control_plane


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(2) as ranks:
        yield ranks


def _train(who: int, how: str, timeout: float) -> tuple[float, str, str]:
    """Nine steps, in the seventh of which rank `who` does `how`; seconds from there to this rank's error, and it."""
    began = 0.0
    try:
        with accel.init(backend="cpu", timeout=timeout) as session:
            model, optimizer = session.prepare(*_model())
            for step in range(1, 10):
                if step == 7:
                    began = time.monotonic()
                    time.sleep(0.6)
                    if session.rank == who:
                        _end(how)
                session.backward(model(torch.ones(4, 8)).sum())
                session.step(optimizer)
    except AccelError as error:
        return time.monotonic() - began, type(error).__name__, str(error)
    return 0.0, "", "nothing"


def _one_stops(who: int, timeout: float, folder: str) -> tuple[float, str, str]:
    """As `_train`, where rank `who` stops itself; once all others have their error it is ended."""
    place, world = Path(folder), int(os.environ["WORLD_SIZE"])
    _model()  # imports what takes seconds, which the session's timeout is too short for on a busy machine
    (place / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    end = time.monotonic() + 40.0
    while len(list(place.glob("pid-*"))) < world and time.monotonic() < end:
        time.sleep(0.05)
    found = _train(who, "stop", timeout)
    (place / f"done-{os.environ['RANK']}").touch()
    if int(os.environ["RANK"]) == (who + 1) % world:
        end = time.monotonic() + 30.0
        while len(list(place.glob("done-*"))) < world - 1 and time.monotonic() < end:
            time.sleep(0.05)
        os.kill(int((place / f"pid-{who}").read_text()), signal.SIGKILL)
    return found


def _model() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(8, 8)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def _end(how: str) -> None:
    if how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    raise ValueError("enough")


def _raising(who: int) -> tuple[float, str, str]:
    try:
        return _train(who, "raise", 60.0)
    except ValueError:
        os._exit(3)  # as an exception that nobody catches ends a process


def test_a_stopped_rank_is_named_by_all_others_with_the_call_and_the_records_say_the_same(tmp_path: Path) -> None:
    # T38, T39
    timeout = 6.0
    env = {"ACCEL_FLIGHT_DIR": str(tmp_path)}
    ended = outcomes(_one_stops, 4, 2, timeout, str(tmp_path), timeout=90.0, env=env)
    assert [end.kind for end in ended] == ["result", "result", "exit", "result"], ended
    for rank in (0, 1, 3):
        seconds, kind, text = ended[rank].value
        assert kind == "CollectiveTimeout", text
        assert seconds < timeout + 5.0, text
        assert "rank 2" in text, text
        assert "gradients(op=mean, dtype=float32, shape=[72]) number 7 of group 'world'" in text, text
        assert "number 6 of group 'world'" in text, text  # that it was last seen in
        assert "test_watch.py" in text
    shown = CliRunner().invoke(app, ["doctor", "hang", str(tmp_path)])
    assert shown.exit_code == 0, shown.output
    assert "3 of 4 ranks left a flight record" in shown.output
    behind = next(line for line in shown.output.splitlines() if "is behind" in line)
    assert behind.startswith("rank 2 is behind: it did not come to gradients(op=mean"), behind
    assert "number 7 of group 'world'" in behind
    assert "ranks 0, 1, 3 wait for it" in behind


def test_a_stopped_rank_that_holds_the_store_is_named_all_the_same(tmp_path: Path) -> None:  # T38
    with RankPool(2) as ranks:
        _, waiting = ranks.outcomes(_one_stops, 0, 4.0, str(tmp_path), timeout=60.0, after_failure=1.0)
    text = waiting.value[2] if waiting.kind == "result" else waiting.text
    assert waiting.kind == "result" or (waiting.kind, waiting.value) == ("exit", 1), waiting
    assert "rank 0" in text
    assert "gradients(op=mean" in text


def test_a_rank_that_is_killed_in_a_step_is_noticed_at_once() -> None:  # T39
    first, second = outcomes(_train, 2, 1, "kill", 60.0, timeout=30.0)
    assert first.kind == "result", first
    assert (second.kind, second.value) == ("exit", -signal.SIGKILL)
    assert "gradients(op=mean" in first.value[2]
    assert "peer ended" in first.value[2]


def test_what_one_rank_raises_in_a_step_is_what_the_others_say() -> None:  # T39
    first, second = outcomes(_raising, 2, 1, timeout=30.0)
    assert first.kind == "result", first
    assert (second.kind, second.value) == ("exit", 3)
    assert first.value[2] == "rank 1 aborted: ValueError: enough"


def _blocked() -> None:
    with collective(timeout=3.0, check="off") as c:
        c.barrier()
        if c.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        c.reduce_gradients(Signature("gradients", "mean", (torch.float32,), (torch.Size((3,)),)))
        threading.Event().wait(60.0)  # stands for a vendor's call, which no exception gets into


def test_a_blocked_call_that_cannot_be_interrupted_is_told_of_and_the_process_ends() -> None:  # T39
    with RankPool(2) as ranks:
        ended = ranks.outcomes(_blocked, timeout=60.0, after_failure=1.0)
    assert (ended[0].kind, ended[0].value) == ("exit", 1), ended[0]
    assert "rank 0 ends with exit code 1: rank 1 has shown no sign of life for 3." in ended[0].text
    assert "it is blocked in gradients(op=mean, dtype=float32, shape=[3])" in ended[0].text
    assert "threading.py" in ended[0].text  # the stack, which says where


def _swapped() -> str:
    with collective() as c:
        gradient, metric = torch.full((2,), 5.0), torch.ones(2)
        calls = [lambda: c.all_reduce(gradient, "max"), lambda: c.all_reduce(metric, "sum")]
        for call in calls:
            call()
        c.barrier()
        for call in calls if c.rank == 0 else reversed(calls):
            call()  # gloo gives both ranks a number, and no error
        time.sleep(2.0)
        with pytest.raises(CollectiveMismatch) as caught:
            c.all_reduce(metric, "sum")
        with pytest.raises(CollectiveError, match=r"cannot run: .*another order"):
            c.all_reduce(metric, "sum")
        return str(caught.value)


def test_known_collectives_in_swapped_order_are_noticed_and_break_the_group(pool: RankPool) -> None:  # T03, T04
    left, right = pool.run(_swapped)
    assert left == right
    assert "as number 3 of group 'world'" in left
    assert "rank 0: all_reduce(op=max, dtype=float32, shape=[2]); rank 1: all_reduce(op=sum" in left


def _alike_for_long() -> int:
    with collective() as c:
        pair = c.new_group([0, 1])
        one = torch.ones(1)
        for i in range(60):
            c.all_reduce(one, "max", group=pair if i % 3 else None)
            if i % 10 == 0:
                time.sleep(0.05 * (1 + c.rank))
        return int(one.item())


def test_ranks_that_do_the_same_at_their_own_pace_are_left_alone(pool: RankPool) -> None:
    assert pool.run(_alike_for_long) == [1, 1]


def _asked_while_busy() -> str:
    with collective() as c:
        known = torch.ones(4)
        c.all_reduce(known)
        c.barrier()
        if c.rank == 0:
            work = c.all_reduce(known, async_op=True)  # passed before: sent without a word
            time.sleep(3.0)  # the watcher answers meanwhile, and rank 1 clears the way with scratch values
            assert work.done()
            with pytest.raises(CollectiveMismatch) as caught:
                work.wait()
        else:
            with pytest.raises(CollectiveMismatch) as caught:
                c.all_reduce(torch.ones(6))
        ones = torch.ones(3)
        c.all_reduce(ones)
        assert ones.tolist() == [2.0] * 3
        return str(caught.value)


def test_a_rank_that_is_busy_is_answered_for_and_takes_no_scratch_for_a_result(pool: RankPool) -> None:  # T03
    left, right = pool.run(_asked_while_busy)
    assert left == right
    assert "[4]" in left
    assert "[6]" in left


def _gradient_against_metric() -> str:
    try:
        with accel.init(backend="cpu", timeout=20.0) as session:
            model, optimizer = session.prepare(*_model())
            for _ in range(3 - session.rank):
                session.backward(model(torch.ones(4, 8)).sum())
                session.step(optimizer)
            session.backend.collective.all_reduce(torch.ones(72))
    except CollectiveMismatch as error:
        text = str(error)
    except CollectiveError as error:  # from its backward, which no exception gets into
        text = str(error).removeprefix("rank 1 aborted: CollectiveMismatch: ")
    print(text, flush=True)
    os._exit(5)  # as an exception that nobody catches ends a process


def test_a_leftover_gradient_never_pairs_with_a_metric() -> None:  # T04
    ended = outcomes(_gradient_against_metric, 2, timeout=40.0)
    for end in ended:
        assert (end.kind, end.value) == ("exit", 5), end
        assert "as number 3 of group 'world': rank 0: gradients(op=mean" in end.text
        assert "rank 1: all_reduce(op=sum, dtype=float32, shape=[72])" in end.text


def _unchecked() -> tuple[str, float]:
    metric = torch.ones(1)
    try:
        with accel.init(backend="cpu", timeout=3.0, check="off") as session:
            model = nn.Linear(1, 1, bias=False)
            model, optimizer = session.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
            for _ in range(3 - session.rank):
                session.backward(model(torch.full((1, 1), 5.0)).sum())
                session.step(optimizer)
            session.backend.collective.all_reduce(metric)
    except CollectiveError as error:
        return str(error), metric.item()
    return "nothing", metric.item()


def test_a_gradient_and_a_metric_do_not_share_a_group_where_nothing_is_checked(pool: RankPool) -> None:  # T04
    (left, _), (right, metric) = pool.run(_unchecked)
    assert "timed out" in right
    assert "nothing" not in (left, right)
    assert metric == 1.0  # 3.5 would be a mean with the gradient, 6 a sum


def _early_leave(what: str) -> str:
    with collective(timeout=20.0) as c:
        c.all_reduce(torch.ones(2))
        c.barrier()
        if c.rank == 1:
            return ""
        began = time.monotonic()
        with pytest.raises(CollectiveError) as caught:
            c.barrier() if what == "barrier" else c.all_reduce(torch.ones(3))
        assert time.monotonic() - began < 15.0
        return str(caught.value)


@pytest.mark.parametrize("what", ["barrier", "all_reduce"])
def test_a_rank_that_left_early_is_named_at_once(pool: RankPool, what: str) -> None:  # T39
    first, _ = pool.run(_early_leave, what)
    assert "rank 1 closed its session or ended before number 2 of group" in first
    assert "rank 1 was last seen in barrier number 1" in first


def _late_to_barrier() -> str:
    with collective(timeout=20.0) as c:
        c.all_reduce(torch.ones(2), "max")
        if c.rank == 0:
            with pytest.raises(CollectiveTimeout) as caught:
                c.barrier(timeout=1.5)
            c.barrier()
            return str(caught.value)
        time.sleep(2.5)
        c.barrier()
        c.barrier()
        return ""


def test_a_barrier_names_the_missing_rank_and_the_last_collective_it_was_seen_in(pool: RankPool) -> None:
    first, _ = pool.run(_late_to_barrier)
    assert "rank 1 did not come (rank 1 was last seen in all_reduce(op=max, dtype=float32, shape=[2])" in first
    assert "test_watch.py" in first


def _dump_on_signal() -> dict[str, object]:
    faulthandler.unregister(signal.SIGUSR1)  # the pool's own; a handler that somebody has set is left alone
    folder = Path(os.environ["ACCEL_FLIGHT_DIR"])
    with collective() as c:
        c.all_reduce(torch.ones(2))
        mine = folder / f"rank-{c.rank:05d}.json"
        if c.rank == 0:
            threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGUSR1)).start()
        else:
            end = time.monotonic() + 20.0
            while not (folder / "rank-00000.json").exists():  # rank 0 is blocked in C meanwhile
                assert time.monotonic() < end
                time.sleep(0.05)
        c.all_reduce(torch.ones(3))
        assert mine.exists() is (c.rank == 0)
        return json.loads(mine.read_text()) if c.rank == 0 else {}


def test_sigusr1_writes_the_flight_record_of_a_rank_that_is_blocked() -> None:
    with RankPool(2) as ranks:
        dump, _ = ranks.run(_dump_on_signal)
    assert dump["reasons"] == ["SIGUSR1"]
    last = dump["entries"][-1]
    assert (last["kind"], last["shapes"], last["end"], last["number"]) == ("all_reduce", [[3]], None, 2)
    assert "test_watch.py" in last["site"]
    assert dump["peers"]["1"]["entry"]["number"] == 1


def _other_settings() -> str:
    rank = int(os.environ["RANK"])
    try:
        with accel.init(backend="cpu", check="off" if rank else "first"):
            return "started"
    except ArgumentError as error:
        return str(error)


def test_ranks_with_different_checks_are_refused_on_all(pool: RankPool) -> None:
    left, right = pool.run(_other_settings)
    assert left == right
    assert "check differs between ranks (rank 0: timeout=600, check='first'; rank 1: timeout=600, check='off')" in left


def _other_timeouts() -> list[str]:
    import logging

    rank, told = int(os.environ["RANK"]), []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("accel").addHandler(handler)
    try:
        with accel.init(backend="cpu", timeout=30.0 + rank):
            return told
    finally:
        logging.getLogger("accel").removeHandler(handler)


def test_ranks_with_different_timeouts_are_told_so(pool: RankPool) -> None:  # T38
    for told in pool.run(_other_timeouts):
        assert any(
            "timeout differs between ranks (rank 0: timeout=30" in line and "rank 1: timeout=31" in line
            for line in told
        )


def _run_names_differ() -> str:
    with control_plane() as control:
        return control.recorder.run


def test_ranks_of_one_job_have_one_run_name_and_two_jobs_two(pool: RankPool) -> None:
    first, second = pool.run(_run_names_differ), pool.run(_run_names_differ)
    assert first[0] == first[1] != second[0] == second[1]
