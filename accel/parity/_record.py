"""Recording: a session that shows a recorder what passes through it, and the run of a script under one.

The hooks are on the user's modules and optimizers and on this session alone; a session that is not recorded has none.
"""

from __future__ import annotations

import runpy
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accel import _observer, _script
from accel._start import Start
from accel.errors import ArgumentError, ParityError, UnsupportedError
from accel.parity import _trace
from accel.parity._recorder import Recorder
from accel.session import Session, StepResult


@dataclass
class Plan:
    """What is to be recorded: the observer of the sessions that a script makes."""

    out: Path
    steps: int
    seed: int | None
    command: str
    recorded: list[RecordedSession] = field(default_factory=list)

    def session(self, start: Start) -> Session:
        if any(not one.unused for one in self.recorded):
            return Session(start)  # the trace is of the session that trained first
        self.recorded.append(RecordedSession(start, self))
        return self.recorded[-1]


class RecordedSession(Session):
    """A session whose steps are recorded; after the last one it writes the trace and ends the script."""

    def __init__(self, start: Start, plan: Plan) -> None:
        super().__init__(start)
        self._plan = plan
        self._written = False
        self.recorder = Recorder(self)

    @property
    def unused(self) -> bool:
        return self.recorder.steps == 0

    def prepare(self, model: nn.Module, *optimizers: torch.optim.Optimizer, **options: Any) -> Any:
        if options.get("compile"):
            raise UnsupportedError(
                "prepare(compile=True) is unsupported while a trace is recorded: a compiled model has no layers to "
                "look at; record it without compile"
            )
        prepared = super().prepare(model, *optimizers, **options)
        self.recorder.watch(self.unwrap(prepared[0] if optimizers else prepared), optimizers)
        return prepared

    def backward(self, loss: torch.Tensor, weight: Any = None) -> None:
        self.recorder.backward(loss, lambda: super(RecordedSession, self).backward(loss, weight))
        self.recorder.loss(loss)

    def step(self, *optimizers: torch.optim.Optimizer, scheduler: Any = None, final: bool = False) -> StepResult:
        self.recorder.stepping()
        result = super().step(*optimizers, scheduler=scheduler, final=final)
        if result.boundary and not self._written:
            self.recorder.boundary(result)
            if self.recorder.steps == self._plan.steps:
                self._write()
                raise SystemExit(0)  # a session takes it for a clean end, and so do most scripts
        return result

    def close(self) -> None:
        self._short()
        super().close()

    def __exit__(self, *exc: Any) -> None:
        if exc[0] is None:
            self._short()
        super().__exit__(*exc)

    def abandon(self) -> None:
        """Write nothing when the session is closed."""
        self._written = True

    def _short(self) -> None:
        """The script ends before the last step that was asked for."""
        if not self._written and not self._closed and self.recorder.steps:
            self._write()

    def _write(self) -> None:
        """Gather every rank's part on the control plane and write the trace on rank 0; all ranks must come."""
        self._written = True
        parts = self.backend.collective.all_gather_object(self.recorder.arrays())
        outcome: str | None = None
        if self.is_main:
            recorder = self.recorder
            about = recorder.about(self._plan.command, self._seed)
            try:
                _trace.write(self._plan.out, about, recorder.layers(), recorder.states(), parts)
            except ParityError as error:
                outcome = str(error)
        outcome = self.backend.collective.broadcast_object(outcome)
        if outcome is not None:
            raise ParityError(outcome)


def record(
    run: Callable[[], object] | str | Path,
    arguments: list[str] | None = None,
    *,
    out: str | Path,
    steps: int,
    seed: int | None = None,
    command: str = "",
) -> int:
    """Run a training script, or a function, until `steps` optimizer steps are recorded; the steps in the trace `out`.

    `seed` takes the place of the seed that the script gives to `accel.init`, and seeds torch before it. The script runs
    in this process, as its main program. Every rank calls; rank 0 writes. Raises `ArgumentError`, `ParityError` where
    nothing was recorded, and whatever the script raises.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ArgumentError(f"steps={steps!r}: expected an integer from 1, the optimizer steps to record")
    if _observer.current.get() is not None:
        raise ParityError("a recording is under way in this process; end it first")
    target = Path(out)
    _trace.check_destination(target)
    if seed is not None:
        torch.manual_seed(seed)
    plan = Plan(target, steps, seed, command)
    argv = sys.argv
    token = _observer.current.set(plan)
    try:
        if callable(run):
            run()
        else:
            _run_script(run, arguments or [])
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    except BaseException:
        for session in plan.recorded:
            session.abandon()  # the other ranks may never come to a gathering
        raise
    finally:
        _observer.current.reset(token)
        sys.argv = argv
        for session in plan.recorded:
            session.close()
    done = max((session.recorder.steps for session in plan.recorded), default=0)
    if not done:
        raise ParityError(
            "nothing was recorded: the script took no optimizer step through a session of accel.init; a trace needs "
            "session.prepare, session.backward and session.step"
        )
    return done


def _run_script(script: str | Path, arguments: list[str]) -> None:
    path = Path(script)
    if not path.is_file():
        raise ArgumentError(f"script {str(script)!r} is not a file; give the path of a Python file")
    if threading.current_thread() is not threading.main_thread():  # a replica beside others
        _script.run(str(path), arguments, looked_up=False)
        return
    sys.argv = [str(path), *arguments]
    before = list(sys.path)
    sys.path.insert(0, str(path.resolve().parent))
    try:
        runpy.run_path(str(path), run_name="__main__")
    finally:
        sys.path[:] = before
