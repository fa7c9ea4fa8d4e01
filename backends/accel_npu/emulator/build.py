"""Compiles the emulated CANN, once for each torch, torch_npu, compiler and state of the sources, into a user cache.

A build is complete or absent: it is made in a folder of its own and renamed. Processes that need the same build wait
for the one that makes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from accel.errors import BackendError
from accel_npu.emulator import environment, operators
from accel_npu.emulator.packages import Packages

HERE = Path(__file__).parent
SOURCES = HERE / "src"
COMPILERS = ("c++", "g++", "clang++")  # the first that exists, unless CXX names one
GENERATED = 2  # files that the operators are spread over, so that two cores can compile them
FLAGS = ("-std=c++17", "-O1", "-fPIC", "-w", "-D_GLIBCXX_USE_CXX11_ABI=1")
SLOW = ("-O0",)  # for files that include ATen: a third of the time, and the work is done in libtorch's kernels
HEADER = "prelude.h"

# Each library that torch_npu links or opens, and the sources it is made of; one without sources only needs to exist.
_INPUTS = {".cpp", ".h", ".def", ".txt"}
RUNTIME = ("common", "runtime_device", "runtime_memory", "runtime_streams", "runtime_system", "runtime_legacy_ops")
LIBRARIES = {
    "ascendcl": RUNTIME,
    "hccl": ("hccl", "hccl_mailbox", "hccl_reduce"),
    "opapi": ("ops", "layers", "fallback", *(f"generated_{part}" for part in range(GENERATED))),
    **dict.fromkeys(("acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel"), ()),
}


@dataclass(frozen=True)
class Compiler:
    """Its path, and the first line of what it says of itself."""

    path: str
    version: str


def compiler() -> Compiler:
    """The C++ compiler to use. Raises `BackendError` with the names tried when there is none."""
    wanted = os.environ.get("CXX", "").split()
    names = wanted[:1] or list(COMPILERS)
    path = next((found for name in names if (found := shutil.which(name))), None)
    if path is None:
        tried = f"CXX={wanted[0]!r}" if wanted else ", ".join(COMPILERS)
        raise BackendError(
            f"no C++ compiler was found (tried {tried}): the NPU emulator is compiled on first use; install one with "
            "C++17, such as `apt-get install g++` or `dnf install gcc-c++`, or name it in CXX"
        )
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return Compiler(path, said.partition("\n")[0])


def cache_folder() -> Path:
    """Where builds are kept: ACCEL_EMULATE_NPU_CACHE, else `accel` below XDG_CACHE_HOME or `~/.cache`."""
    chosen = os.environ.get("ACCEL_EMULATE_NPU_CACHE", "").strip()
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME", "").strip() or Path.home() / ".cache") / "accel" / "emulated-npu"


def build(packages: Packages, *, rebuild: bool = False) -> Path:
    """The folder of the emulated libraries for this pair, compiled if it is not there yet.

    Raises `BackendError` when there is no compiler, when it fails (with the end of its output), or when the cache
    cannot be written.
    """
    chosen = compiler()
    folder = cache_folder() / f"{packages.torch}-{packages.torch_npu}-{_digest(packages, chosen)}"
    if folder.is_dir() and not rebuild:
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.parent / f"{folder.name}.lock"):
            if folder.is_dir() and not rebuild:  # another process has made it meanwhile
                return folder
            _make(folder, packages, chosen)
    except OSError as error:
        raise BackendError(
            f"the NPU emulator cannot be built in {folder.parent}: {error}; "
            "ACCEL_EMULATE_NPU_CACHE names another folder"
        ) from error
    return folder


def _make(folder: Path, packages: Packages, chosen: Compiler) -> None:
    print(f"accel: compiling the NPU emulator with {chosen.version}, once, into {folder}", file=sys.stderr)  # noqa: T201
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix="building-") as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        _generate(Path(scratch))
        pool = ThreadPoolExecutor(max(1, len(os.sched_getaffinity(0))))
        try:
            header = pool.submit(_precompile, Path(scratch), packages, chosen)
            quick = (*RUNTIME, *LIBRARIES["hccl"])
            jobs = [pool.submit(_compile, name, Path(scratch), packages, chosen) for name in quick]
            header.result()
            jobs += [pool.submit(_compile, name, Path(scratch), packages, chosen) for name in LIBRARIES["opapi"]]
            for job in jobs:
                job.result()
        finally:
            pool.shutdown(cancel_futures=True)
        for library, sources in LIBRARIES.items():
            _link(library, sources, Path(scratch), made, packages, chosen)
        shutil.copy(HERE / "native.txt", made / "native.txt")
        _load(made)
        if folder.exists():  # a rebuild: programs that run on the old one keep its files
            folder.rename(Path(scratch) / "old")
        made.rename(folder)


def _load(made: Path) -> None:
    """Import torch_npu on the new libraries, once: what a build is there for can be loaded."""
    environ = {**environment.environment(made), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", "import torch, torch_npu"], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode:
        said = "\n".join(done.stderr.splitlines()[-20:])
        raise BackendError(f"torch_npu cannot be imported on the emulator, exit code {done.returncode}:\n{said}")


def _generate(scratch: Path) -> None:
    chosen, limits = operators.operators(), operators.refusals()
    for part in range(GENERATED):
        (scratch / f"generated_{part}.cpp").write_text(operators.generate(chosen[part::GENERATED], limits))


def _precompile(scratch: Path, packages: Packages, chosen: Compiler) -> None:
    """ATen's headers, once for all files that include them: reading them is most of the work."""
    header = scratch / HEADER
    header.write_text('#include "ops.h"\n#include <torch/library.h>\n')
    _call(chosen, *_flags(packages, slow=True), "-x", "c++-header", str(header), "-o", f"{header}.gch")


def _compile(name: str, scratch: Path, packages: Packages, chosen: Compiler) -> None:
    source = scratch / f"{name}.cpp"
    source = source if source.exists() else SOURCES / f"{name}.cpp"
    slow = name in LIBRARIES["opapi"]
    include = ["-include", str(scratch / HEADER)] if slow else []
    _call(chosen, *_flags(packages, slow=slow), *include, "-c", str(source), "-o", str(scratch / f"{name}.o"))


def _flags(packages: Packages, *, slow: bool) -> list[str]:
    third_party = packages.torch_npu_folder / "include" / "third_party"
    torch = packages.torch_folder / "include"
    include = [
        SOURCES, packages.torch_npu_folder / "include", third_party / "acl" / "inc", third_party / "hccl" / "inc",
        torch, torch / "torch" / "csrc" / "api" / "include",
    ]  # fmt: skip
    return [*FLAGS, *(SLOW if slow else ()), *(f"-I{folder}" for folder in include)]


def _link(
    library: str, sources: tuple[str, ...], scratch: Path, made: Path, packages: Packages, chosen: Compiler
) -> None:
    objects = [str(scratch / f"{name}.o") for name in sources]
    needs = [] if library == "ascendcl" else [f"-L{made}", "-lascendcl"]
    if library == "opapi":
        needs += [f"-L{packages.torch_folder / 'lib'}", "-ltorch_cpu", "-lc10"]
    if not sources:  # one function, as torch's unwinder warns of a library without any
        empty = scratch / f"{library}.cpp"
        empty.write_text(f'extern "C" void accel_emulated_{library}() {{}}\n')
        objects = [str(empty)]
    _call(
        chosen, "-shared", "-fPIC", *objects, "-o", str(made / f"lib{library}.so"), f"-Wl,-soname,lib{library}.so",
        "-Wl,--no-as-needed", *needs, "-ldl", "-lpthread", "-Wl,-rpath,$ORIGIN",
    )  # fmt: skip


def _call(chosen: Compiler, *arguments: str) -> None:
    done = subprocess.run([chosen.path, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BackendError(
            f"{chosen.path} ({chosen.version}) could not build the NPU emulator, exit code {done.returncode}:\n"
            + "\n".join(done.stderr.splitlines()[-20:])
        )


def _digest(packages: Packages, chosen: Compiler) -> str:
    found = hashlib.sha256(repr((packages, chosen, FLAGS, SLOW)).encode())
    for path in sorted(HERE.rglob("*")):
        if path.suffix in _INPUTS or path.name in {"build.py", "operators.py"}:
            found.update(path.relative_to(HERE).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold an exclusive lock; it goes with the process, however that ends."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
