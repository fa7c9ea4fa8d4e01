"""Every error that accel raises on purpose.

A message names the variable or argument, the value found, what was expected and what to do next. All types derive from
`AccelError`; each also derives from the built-in error a caller would expect, so `except ValueError` keeps working.
This file owns the types only; the command line turns `AccelError` into one line and an exit code.
"""

from __future__ import annotations


class AccelError(Exception):
    """Base of all errors raised by accel on purpose."""

    exit_code = 1

    @property
    def line(self) -> str:
        """The message on one line, without the traceback that torch puts before it when a loader's worker raised it."""
        text = str(self).strip()
        if text.startswith("Caught ") and "\nOriginal Traceback" in text:
            text = text.splitlines()[-1].partition(": ")[2]
        return " ".join(text.split())


class ArgumentError(AccelError, ValueError):
    """An argument, option or `ACCEL_*` variable has a value that cannot be used."""

    exit_code = 2


class TensorError(AccelError, TypeError):
    """A tensor has a dtype, device, shape or layout that the call cannot take; raised before anything is sent."""

    exit_code = 2


class UnsupportedError(AccelError, NotImplementedError):
    """The backend's capability table says `unsupported` for what was asked; the message carries the table's reason."""

    exit_code = 2


class BackendError(AccelError, RuntimeError):
    """A backend is unknown, unusable or ambiguous."""

    exit_code = 2


class LaunchError(AccelError, RuntimeError):
    """RANK, WORLD_SIZE, MASTER_* and their like are partial, contradictory or unusable."""

    exit_code = 2


class DeviceError(AccelError, RuntimeError):
    """An operation failed on the device, perhaps long before the Python line that the error was raised in."""


class CollectiveError(AccelError, RuntimeError):
    """A collective failed: a peer died, the fabric broke or the group is no longer usable."""


class CollectiveTimeout(CollectiveError, TimeoutError):
    """A collective or barrier did not finish in time; the message names the operation, group, rank and timeout."""


class CollectiveMismatch(CollectiveError):
    """Ranks issued different collectives (operation, dtype, shape or order); raised on every rank."""


class ModelError(AccelError, ValueError):
    """A model or optimizer cannot be prepared: wrong device, wrong dtype, or parameters that do not belong together."""


class WindowError(AccelError, RuntimeError):
    """The order of `backward` and `step` calls in an accumulation window is not one that trains correctly."""


class BatchSizeError(AccelError, RuntimeError):
    """No batch size of the range fits into memory; the message says what was tried."""


class LossScaleError(AccelError, RuntimeError):
    """Loss scaling cannot go on: too many skipped steps in a row."""


class CheckpointError(AccelError, RuntimeError):
    """A checkpoint is absent, incomplete, corrupt, foreign or does not fit the objects given."""

    exit_code = 2


class EncodingError(AccelError, TypeError):
    """An object holds something that the safe encoding does not carry (no pickle: plain data and tensors only)."""


class ExportError(AccelError, RuntimeError):
    """A step cannot be exported for compilation ahead of time: it reads a value, or records nothing."""


class CompileError(AccelError, RuntimeError):
    """The compiler for another machine refused a program, or ended; running out of that machine's memory is a result
    and not this error.
    """


class ClockError(AccelError, ValueError):
    """A clock stood still or went backwards around work that was timed, so there is no figure."""


class RecordError(AccelError, ValueError):
    """A benchmark record is truncated, foreign, from a future schema, or cannot be compared."""

    exit_code = 2


class ParityError(AccelError, ValueError):
    """A trace cannot be recorded or read, or two traces are not of the same training and cannot be compared."""

    exit_code = 2


class DataError(AccelError, ValueError):
    """A dataset is absent, empty or unreadable."""

    exit_code = 2
