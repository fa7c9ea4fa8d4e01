"""`Compiler`: libtpu's compiler in the Python that has it, kept open for several programs, and what it says of each.

The process it starts runs `_libtpu.py`; the two talk in lines of JSON. Owns finding that Python, starting and ending
the process, and reading the compiler's own out-of-memory.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple

from accel.aot import _libtpu, _topology
from accel.aot._program import Program
from accel.errors import ArgumentError, BackendError, CompileError

SETTING = "ACCEL_AOT_PYTHON"
OPTIMIZATION = ("O0", "O1", "O2", "O3", "default")
PINNED = "jax==0.10.2 libtpu==0.0.52"
TIMEOUT = 3600.0  # seconds for one program: ResNet-50 takes 230 s at libtpu's default on two cores

# libtpu 0.0.52: "Ran out of memory on HBM, the total memory required for HLO temporaries (64.22G) exceeds available HBM
# (15.75G)"; "Ran out of memory in memory space hbm. Used 19.61G of 15.48G hbm."
_NEEDED = re.compile(
    r"\(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)|Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm"
)
REFUSED = ("INVALID_ARGUMENT", "NOT_FOUND")  # how libtpu's answers to a topology that does not exist begin
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class Topology(NamedTuple):
    """A topology as libtpu describes it."""

    name: str
    kind: str  # what the driver calls the chip
    devices: int  # of PJRT; a chip of v2, v3 and tpu7x has two
    chips: int


class Shortage(NamedTuple):
    """The compiler's own out-of-memory. Sizes in bytes, to the digits that it prints; None where it prints none."""

    needed: int | None
    available: int | None
    message: str

    @property
    def missing(self) -> int | None:
        """How much more memory the program needs than a device has."""
        return None if self.needed is None or self.available is None else self.needed - self.available


@dataclass(frozen=True)
class Compiled:
    """A program compiled for a topology. Sizes in bytes and counts are of one device, as the compiler gives them."""

    topology: Topology
    optimization: str
    seconds: float  # of the compilation, on this machine's processors
    shortage: Shortage | None = None  # None: it fits, and the figures below are there
    peak: int | None = None  # HBM
    temporary: int | None = None
    arguments: int | None = None
    outputs: int | None = None
    aliased: int | None = None  # of the outputs, those in the place of an argument
    code: int | None = None
    flops: float | None = None  # floating-point operations of a step
    bytes_accessed: float | None = None  # read and written in a step
    versions: dict[str, str] = field(default_factory=dict)  # of jax and libtpu

    @property
    def fits(self) -> bool:
        """Whether the program fits into the memory of a device."""
        return self.shortage is None


class Compiler:
    """A context manager. Raises `BackendError` on entry where no Python with jax and libtpu is found.

    `python` is the interpreter that has them; default: `ACCEL_AOT_PYTHON`, else the one that runs.
    """

    def __init__(self, python: str | None = None, timeout: float = TIMEOUT) -> None:
        self._python, self._named = _interpreter(python)
        self._timeout = timeout
        self._process: subprocess.Popen[str] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._log: IO[str] | None = None
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Compiler:
        self._folder = tempfile.TemporaryDirectory(prefix="accel-aot-")
        self._log = (Path(self._folder.name) / "log").open("w+", encoding="utf-8")
        try:
            self._process = subprocess.Popen(
                [self._python, _libtpu.__file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
                env=_environment(),
            )
            hello = self._read(60.0)
        except OSError as error:
            self._close()
            raise BackendError(
                f"{self._named} cannot be run ({error.strerror or error}); name a Python that can"
            ) from error
        except BaseException:
            self._close()
            raise
        if hello["missing"]:
            self._close()
            raise BackendError(
                f"{self._named} has no {' and no '.join(hello['missing'])}, which compile for a TPU; make an "
                f"environment with `pip install {PINNED}` and name its Python with --aot-python or {SETTING}"
            )
        self.versions = hello["versions"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def topology(self, name: str) -> Topology:
        """What `name` is. Raises `ArgumentError`, suggesting the nearest one, for a topology that does not exist."""
        config = _topology.family(_topology.check(name)).chip_config
        answer = self._ask({"do": "describe", "topology": name, "chip_config": config})
        if "error" in answer:
            text = answer["error"].partition(": ")[2]
            if not text.startswith(REFUSED):
                raise CompileError(f"libtpu {self.versions['libtpu']} does not start: {_first(answer['error'])}")
            raise _topology.refusal(name, f"libtpu {self.versions['libtpu']} says {text!r}")
        return Topology(name, answer["kind"], answer["devices"], answer["chips"])

    def compile(self, program: Program, topology: str, *, optimization: str = "O0") -> Compiled:
        """Compile `program` for every device of `topology`, one replica each.

        optimization: "O0" to "O3", or "default" for libtpu's own, which is what a TPU host runs and takes ten times as
        long. Raises `ArgumentError` for a topology that does not exist or has another number of devices than the
        program, `CompileError` where the compiler refuses the program for another reason than memory.
        """
        if optimization not in OPTIMIZATION:
            raise ArgumentError(f"optimization is {optimization!r}; expected one of {', '.join(OPTIMIZATION)}")
        place = self.topology(topology)
        if program.replicas != place.devices:
            raise ArgumentError(
                f"the program is for {program.replicas} replica(s), topology {topology!r} has {place.devices} device(s)"
                f"; export it with replicas={place.devices}"
            )
        assert self._folder is not None
        file = Path(self._folder.name) / "program.mlir"
        file.write_text(program.text, encoding="utf-8")
        start = time.perf_counter()
        answer = self._ask(
            {
                "do": "compile",
                "program": str(file),
                "topology": topology,
                "chip_config": _topology.family(topology).chip_config,
                "replicas": program.replicas,
                "optimization": "UNKNOWN" if optimization == "default" else optimization,
            }
        )
        error = answer.pop("error", None)
        if error is None:
            return Compiled(place, optimization, versions=self.versions, **answer)
        short = shortage(error)
        if short is None:
            raise CompileError(
                f"libtpu {self.versions['libtpu']} cannot compile the program for {topology}: {_first(error)}"
            )
        return Compiled(place, optimization, time.perf_counter() - start, short, versions=self.versions)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self._process
        if process is None or process.stdin is None:
            raise CompileError("the compiler is not open: use it as a context manager")
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except OSError as error:
            raise self._ended() from error
        return self._read(self._timeout)

    def _read(self, seconds: float) -> dict[str, Any]:
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        if not ready:
            self._process.kill()
            raise CompileError(f"the compiler in {self._python} gave no answer in {seconds:g} s and was ended")
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _ended(self) -> CompileError:
        assert self._process is not None
        assert self._log is not None
        code = self._process.wait()
        self._log.flush()
        lines = Path(self._log.name).read_text(encoding="utf-8", errors="replace").split("\n")
        said = next((line for line in reversed(lines) if line.strip()), "nothing")
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return CompileError(f"the compiler in {self._python} ended {how}; the last it said was: {said.strip()[:300]}")

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        if self._log is not None:
            self._log.close()
        if self._folder is not None:
            self._folder.cleanup()


def shortage(error: str) -> Shortage | None:
    """The out-of-memory in a compiler's error; None where it is another error."""
    if "RESOURCE_EXHAUSTED" not in error and "Ran out of memory" not in error:
        return None
    found = _NEEDED.search(error)
    if found is None:
        return Shortage(None, None, _first(error))
    needed, unit, available, other = (part for part in found.groups() if part is not None)
    return Shortage(_bytes(needed, unit), _bytes(available, other), _first(error))


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * _UNITS[unit])


def _first(text: str, limit: int = 400) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[: limit - 3] + "..."


def _interpreter(given: str | None) -> tuple[str, str]:
    """The Python with jax and libtpu, and how it was named."""
    if given is not None:
        return given, f"--aot-python {given}"
    setting = os.environ.get(SETTING, "").strip()
    return (setting, f"{SETTING}={setting}") if setting else (sys.executable, f"this Python ({sys.executable})")


def _environment() -> dict[str, str]:
    """This process's environment without what belongs to torch_xla or to this Python's packages."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PJRT_DEVICE", "XLA_FLAGS")}
