"""The project's tasks, and the environments they run in: one a backend, under `.venvs/`.

A session named after a backend (`cpu`) makes or refreshes `.venvs/cpu`; `test-cpu` runs the test suite in it. Lint,
docs, `compare` and `prove` run in the CPU environment. An environment is made on first use and left alone until one of
its inputs changes: dependencies and pinned groups of pyproject.toml, its row in `LANES`, the interpreter.
`make help` lists the commands for people; `.ci/results.py` decides whether what ran is a pass.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import nox

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml(ROOT / "pyproject.toml")
RESULTS = ROOT / "build" / "results"
CUDA_STUBS = ".ci/cuda_stubs.py"
STARTED = time.time()

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "venv"
nox.options.envdir = ".venvs"
nox.options.reuse_venv = "yes"


@dataclass(frozen=True)
class Lane:
    """The environment of one backend."""

    torch: tuple[str, ...]  # requirements in order of preference: the first that pip offers is installed
    extras: tuple[str, ...]  # of the distribution
    groups: tuple[str, ...]  # of pinned development tools
    bare: tuple[str, ...] = ()  # installed without their dependencies, instead of `torch`; a group gives what they need
    vendor: tuple[str, ...] = ()  # packages installed after torch
    through: tuple[str, ...] = ()  # arguments to python before everything that runs in the lane, such as an emulator
    env: dict[str, str] = field(default_factory=dict)  # of everything that runs in the lane
    tests: tuple[str, ...] = ()  # what pytest is given; nothing: all tests
    within: str = ""  # the lane whose environment this one uses, instead of one of its own
    workers: int = 1  # processes that share the lane's tests
    beside: tuple[str, ...] = ()  # sessions that make other environments, which its tests use
    compared: tuple[tuple[str, ...], ...] = ()  # arguments of each run that `make compare` trains in it


AOT_PYTHON = ROOT / ".venvs" / "aot" / "bin" / "python"  # it has the TPU compiler
TRAINED = ("--data", "digits", "--epochs", "5", "--evaluate")
# What a client without optimization does in minutes. Its speed says nothing; its losses are set beside the CPU's. At
# the recipe's rate a last digit grows some hundredfold a step; at this one losses tell other mathematics from rounding.
PARITY = (
    *("--data", "digits", "--model", "resnet18", "--batch", "16", "--lr", "0.0001"),
    *("--warmup", "4", "--steps", "6", "--repeats", "1"),
)

LANES = {
    "cpu": Lane(
        torch=("torch==2.13.0+cpu", "torch==2.13.0"),  # a CPU build where pip offers one
        extras=("report", "vision"),
        groups=("test", "bench", "lint", "docs"),
        workers=2,  # most tests keep one core busy
        compared=(TRAINED, PARITY),
    ),
    # torch 2.9 for x86-64 is a CUDA build with 4.4 GB of CUDA wheels, none of which XLA uses: see .ci/cuda_stubs.py.
    "xla": Lane(
        torch=(),
        bare=("torch==2.9.0", "torch_xla==2.9.0"),
        extras=("report", "vision"),
        groups=("test", "xla"),
        # On PJRT's CPU client; without optimization a ResNet compiles in a tenth of the time.
        env={
            "PJRT_DEVICE": "CPU",
            "XLA_FLAGS": "--xla_backend_optimization_level=0",
            "ACCEL_AOT_PYTHON": str(AOT_PYTHON),
        },
        beside=("aot",),
        tests=("tests/contract/test_contract.py", "tests/xla"),
        workers=2,
        compared=(PARITY,),
    ),
    # What of the CUDA backend can be tested without a GPU, on a CUDA build of torch: the one of the xla environment.
    "cuda": Lane(
        torch=(),
        extras=(),
        groups=(),
        within="xla",
        env={"ACCEL_BACKEND": "cpu"},
        tests=("tests/cuda",),
    ),
    # torch_tpu without a TPU: what its backend calls is there and does what it is taken to do.
    "tpu": Lane(
        torch=("torch==2.13.0+cpu", "torch==2.13.0"),
        extras=(),
        groups=("test", "tpu"),
        # No metadata service to ask for a TPU's place, and no lock that other processes of this machine wait for.
        env={
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
            "TPU_SKIP_MDS_QUERY": "1",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        },
        tests=("tests/tpu",),
    ),
    # The released torch_npu on an emulated CANN, which is compiled on first use; it takes a CPU build of torch only.
    "npu": Lane(
        torch=("torch==2.13.0+cpu", "torch==2.13.0"),
        vendor=("torch_npu==2.13.0",),
        extras=("report", "vision"),
        groups=("test",),
        through=("-m", "accel", "emulate", "npu", "--"),
        env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},  # plain `import torch` works outside the emulator too
        tests=("tests/contract/test_contract.py", "tests/npu"),
        workers=2,
        compared=(PARITY,),
    ),
}
CHECKS = ("lint", "docs")  # what `make test` runs beside the lanes

nox.options.sessions = [*CHECKS, *(f"test-{lane}" for lane in LANES), "results"]


def environment(session: nox.Session, lane: str) -> None:
    """Install a lane's packages into its environment, unless exactly they are there already."""
    home = Path(session.virtualenv.location)
    stamp, digest = home / "inputs.sha256", inputs(lane)
    if stamp.exists() and stamp.read_text() == digest:
        return
    stamp.unlink(missing_ok=True)
    session.install(*nox.project.dependency_groups(PROJECT, "pip"))
    tools = nox.project.dependency_groups(PROJECT, *LANES[lane].groups)
    if LANES[lane].bare:
        session.install("--no-deps", *LANES[lane].bare)
        session.run("python", CUDA_STUBS)
        session.install(*needs(LANES[lane].extras), *tools)
        session.install("--no-deps", "--editable", ".")
        stamp.write_text(digest)
        return
    torch = choose(session, LANES[lane].torch)
    session.log(f"the {lane} environment takes {torch}")
    session.install(torch)
    constraint = home / "torch.txt"  # keeps other packages from replacing this build of torch
    constraint.write_text(torch + "\n")
    extras = ",".join(LANES[lane].extras)
    project = f".[{extras}]" if extras else "."
    session.install("--constraint", str(constraint), "--editable", project, *LANES[lane].vendor, *tools)
    stamp.write_text(digest)


def needs(extras: tuple[str, ...]) -> list[str]:
    """What the distribution itself requires, without torch."""
    project = PROJECT["project"]
    optional = [requirement for extra in extras for requirement in project["optional-dependencies"][extra]]
    return [one for one in (*project["dependencies"], *optional) if re.match(r"[\w-]+", one)[0] != "torch"]


def inputs(lane: str) -> str:
    """A digest of everything that decides what a lane's environment holds."""
    roots = sorted(path.parent.name for path in ROOT.glob("backends/*/__init__.py"))  # each is mapped by the install
    kind = LANES[lane]
    parts = [
        *(kind.torch, kind.extras, kind.bare, kind.vendor),
        (ROOT / CUDA_STUBS).read_text() if kind.bare else "",
        PROJECT["build-system"],
        PROJECT["project"],
        nox.project.dependency_groups(PROJECT, "pip", *kind.groups),
        roots,
        sys.version,
        str(ROOT),
    ]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def choose(session: nox.Session, requirements: tuple[str, ...]) -> str:
    """The first requirement that pip can find here; the last one is taken without asking."""
    pip = (str(Path(session.virtualenv.location) / "bin" / "python"), "-m", "pip")
    for requirement in requirements[:-1]:
        query = (*pip, "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed", requirement)
        if subprocess.run(query, capture_output=True, check=False).returncode == 0:
            return requirement
        session.log(f"pip does not offer {requirement} here")
    return requirements[-1]


def run(session: nox.Session, lane: str, *arguments: str, **env: str) -> None:
    """Run `python ARGUMENTS` in a lane's environment, from the repository root, on the lane's backend."""
    python = str(ROOT / ".venvs" / (LANES[lane].within or lane) / "bin" / "python")
    if LANES[lane].through:
        arguments = (*LANES[lane].through, python, *arguments)
    session.run(python, *arguments, env={"ACCEL_BACKEND": lane, **LANES[lane].env, **env}, external=True)


def judge(session: nox.Session, *arguments: str) -> None:
    session.run(sys.executable, ".ci/results.py", *arguments, external=True)


def test(session: nox.Session, lane: str) -> None:
    """Run pytest in a lane; tests start several processes on few cores, so each gets one thread."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    report = RESULTS / f"{lane}.xml"
    report.unlink(missing_ok=True)
    pytest = ["-m", "pytest", f"--backend={lane}", f"--junitxml={report}", "--durations=10"]
    if LANES[lane].workers > 1:
        pytest += ["--numprocesses", str(LANES[lane].workers), "--dist", "worksteal"]
    run(session, lane, *pytest, *(session.posargs or LANES[lane].tests), OMP_NUM_THREADS="1")
    judge(session, "lane", lane)


def passed(check: str) -> None:
    """Leave word for the closing summary that a check other than a lane has passed."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / check).touch()


for name, kind in LANES.items():
    if not kind.within:

        @nox.session(name=name)
        def _environment(session: nox.Session, lane: str = name) -> None:
            """Make or refresh the backend's environment."""
            environment(session, lane)

    @nox.session(name=f"test-{name}", requires=[kind.within or name, *kind.beside], venv_backend="none")
    def _test(session: nox.Session, lane: str = name) -> None:
        """Run the test suite on the backend."""
        test(session, lane)


@nox.session
def aot(session: nox.Session) -> None:
    """Make or refresh the environment of the TPU compiler, which the xla environment's packages do not go with."""
    stamp = Path(session.virtualenv.location) / "inputs.sha256"
    tools = nox.project.dependency_groups(PROJECT, "aot")
    digest = hashlib.sha256(json.dumps([tools, sys.version, str(ROOT)]).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return
    stamp.unlink(missing_ok=True)
    session.install(*nox.project.dependency_groups(PROJECT, "pip"))
    session.install(*tools)
    stamp.write_text(digest)


@nox.session(requires=["cpu"], venv_backend="none")
def lint(session: nox.Session) -> None:
    """Check style, formatting and types."""
    run(session, "cpu", "-m", "ruff", "check", ".")
    run(session, "cpu", "-m", "ruff", "format", "--check", ".")
    run(session, "cpu", "-m", "mypy")
    passed("lint")


@nox.session(requires=["cpu"], venv_backend="none")
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning is an error."""
    run(session, "cpu", "-m", "sphinx", "-W", "--keep-going", "--quiet", "-b", "html", "docs", "build/docs")
    session.log("the documentation is at build/docs/index.html")
    passed("docs")


@nox.session(venv_backend="none")
def results(session: nox.Session) -> None:
    """Close `make test`: fail unless every lane and every check ran in this call and passed."""
    judge(session, "summary", f"--since={STARTED}", f"--lanes={','.join(LANES)}", f"--checks={','.join(CHECKS)}")


COMPARED = [name for name, lane in LANES.items() if lane.compared]


@nox.session(requires=COMPARED, venv_backend="none")
def compare(session: nox.Session) -> None:
    """Train on real digits in the compared environments, and compare the records under results/.

    ResNet-50 for its figures, and a few steps of ResNet-18 for the parity of its losses with XLA's on the CPU.
    """
    for lane in COMPARED:
        for train in LANES[lane].compared:
            run(session, lane, "-m", "accel", "bench", "resnet50", *train, "--out", "results")
    run(session, "cpu", "-m", "accel", "compare", "results", "--html", "results/compare.html")


@nox.session(requires=["xla", "aot"], venv_backend="none")
def aot_table(session: nox.Session) -> None:
    """Compile ResNet-50 for each TPU generation, with no TPU, into docs/aot; `-- --missing` goes on with a part."""
    run(session, "xla", "-m", "accel", "bench", "aot-table", "--out", "docs/aot", *session.posargs)


# Tables in docs/tables that lanes measure or declare, and the environment that each lane's part is made in.
TABLES = {
    "collectives": {"cpu": "cpu", "cuda": "cpu", "npu": "npu", "xla": "xla", "tpu": "tpu"},
    "dtypes": {"cpu": "cpu", "cuda": "cpu", "npu": "npu", "xla": "xla"},
    "memory": {"cpu": "cpu", "cuda": "cpu", "npu": "npu", "xla": "xla"},
}


@nox.session(requires=["cpu", "xla", "tpu", "npu"], venv_backend="none")
def tables(session: nox.Session) -> None:
    """Make the tables of the documentation anew; the tests of each lane fail where the committed part differs."""
    for name, parts in TABLES.items():
        for part, lane in parts.items():
            run(session, lane, f".ci/table_{name}.py", part)


@nox.session(requires=["cpu", "xla", "npu"], venv_backend="none")
def prove(session: nox.Session) -> None:
    """Run the long proofs that `make test` leaves out."""
    run(session, "cpu", "-m", "pytest", "-m", "prove", "--durations=0", *session.posargs)
