"""`accel emulate npu` where nothing is compiled: options, packages that cannot work, the operator tables, ELF files."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest

from accel.cli import emulate
from accel.errors import AccelError, ArgumentError, BackendError
from accel_npu.emulator import build, environment, operators, packages, symbols


@pytest.mark.parametrize(
    ("text", "size"), [("1000000", 10**6), ("8GiB", 2**33), ("512 MiB", 2**29), ("2GB", 2 * 10**9), ("1g", 2**30)]
)
def test_sizes_have_units(text: str, size: int) -> None:
    assert environment.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1.5GiB", "8 parsecs", "0x10"])
def test_a_size_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"--hbm is .*; expected a number of bytes"):
        environment.parse_size(text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 0}, r"--devices is 0; expected 1 to 64"),
        ({"devices": 65}, r"--devices is 65"),
        ({"mode": "fast"}, r"--mode is 'fast'; expected immediate or threaded"),
        ({"jitter": -1, "mode": "threaded"}, r"--jitter is -1"),
        ({"jitter": 5}, r"--jitter 5 needs --mode threaded"),
        ({"hbm": "1MiB"}, r"--hbm is 1MiB .*at least 64MiB"),
    ],
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=message):
        environment.environment(tmp_path, **options)  # type: ignore[arg-type]


def test_the_environment_keeps_what_the_user_set(tmp_path: Path) -> None:
    found = environment.environment(tmp_path, hbm="1GiB", environ={"ACCEL_BACKEND": "cpu", "LD_LIBRARY_PATH": "/a"})
    assert found["ACCEL_BACKEND"] == "cpu"
    assert found["LD_LIBRARY_PATH"] == f"{tmp_path}:/a"
    assert found["ACCEL_EMULATE_NPU_HBM"] == str(2**30)
    assert environment.active(found)
    assert not environment.active({})
    assert environment.environment(tmp_path, environ={})["ACCEL_BACKEND"] == "npu"


def test_without_a_compiler_the_error_names_what_was_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BackendError, match=r"tried c\+\+, g\+\+, clang\+\+.*apt-get install g\+\+"):
        build.compiler()
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(BackendError, match=r"tried CXX='no-such-compiler'"):
        build.compiler()


def test_the_cache_moves_with_its_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("ACCEL_EMULATE_NPU_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert build.cache_folder() == tmp_path / "accel" / "emulated-npu"
    monkeypatch.setenv("ACCEL_EMULATE_NPU_CACHE", str(tmp_path / "own"))
    assert build.cache_folder() == tmp_path / "own"


@pytest.mark.parametrize(
    ("version_file", "carried"),
    [
        ("__version__ = '2.14.0'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n", "CUDA 13.0"),
        ("cuda = None\nhip: Optional[str] = '6.4'\n", "HIP 6.4"),
        ("__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip = None\n", None),
    ],
)
def test_a_torch_that_carries_an_accelerator_is_refused_before_it_loads(
    version_file: str, carried: str | None, tmp_path: Path
) -> None:
    (tmp_path / "version.py").write_text(version_file)
    assert packages.carries(tmp_path) == carried
    if carried is None:
        packages.check("2.14.0", "2.14.0", tmp_path)
        return
    with pytest.raises(BackendError, match=rf"torch 2\.14\.0 is a {carried} build.*torch==2\.14\.0\+cpu"):
        packages.check("2.14.0", "2.14.0", tmp_path)


def test_versions_that_do_not_pair_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        BackendError, match=r"torch 2\.13\.0\+cpu and torch_npu 2\.14\.0 do not pair.*install torch 2\.14"
    ):
        packages.check("2.13.0+cpu", "2.14.0", tmp_path)


def test_an_unknown_emulator_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ArgumentError, match="no emulator is called 'gpu'"):
        emulate.emulate("gpu", [])


def test_the_operator_tables_are_read_and_each_refusal_is_of_an_operator_and_its_arguments() -> None:
    found = {one.name: {name for _, name in one.arguments} for one in operators.operators()}
    limits = operators.refusals()
    assert len(found) > 180
    for limit in limits:
        assert set(limit.arguments) <= found[limit.name], limit
        assert limit.source
    source = operators.generate(operators.operators(), limits)
    assert 'accept("aclnnMm", "mat2", mat2, {at::kFloat, at::kHalf, at::kBFloat16});' in source


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("Add(Tensor self) store(out)", r"bad\.def:2: .* is not `Name"),
        ("Add(Matrix self) = body", r"bad\.def:2: type 'Matrix' of Add"),
        ("One(Tensor self) = body", r"bad\.def:2: One is already defined"),
    ],
)
def test_a_bad_line_of_an_operator_table_is_named(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.def").write_text(f"One(Tensor self) = body\n{line}\n")
    with pytest.raises(AccelError, match=message):
        operators.operators(tmp_path)


def test_a_bad_line_of_the_refusals_is_named(tmp_path: Path) -> None:
    (tmp_path / "refusals.def").write_text("# comment\nMm self: quaternion | somewhere\n")
    with pytest.raises(AccelError, match=r"refusals\.def:2"):
        operators.refusals(tmp_path / "refusals.def")


def elf(*symbols_: tuple[str, bool]) -> bytes:
    """A minimal ELF-64 library with this dynamic symbol table: name, and whether it is defined."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name, _ in symbols_)
    table, place = bytes(24), 1
    for name, is_defined in symbols_:
        table += struct.pack("<IBBHQQ", place, 0x12, 0, 1 if is_defined else 0, 0, 0)
        place += len(name) + 1
    start = 64
    sections = [
        struct.pack("<IIQQQQIIQQ", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0),
        struct.pack("<IIQQQQIIQQ", 0, 11, 0, 0, start, len(table), 2, 0, 8, 24),
        struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, start + len(table), len(names), 0, 0, 1, 0),
    ]
    header = b"\x7fELF\x02\x01" + bytes(34) + struct.pack("<Q", start + len(table) + len(names)) + bytes(10)
    header += struct.pack("<HH", 64, len(sections))
    return header.ljust(64, b"\0") + table + names + b"".join(sections)


def test_a_wheel_is_read_for_what_it_needs_of_cann(tmp_path: Path) -> None:
    wheel = tmp_path / "torch_npu-9.9.0-cp311-cp311-linux_x86_64.whl"
    library = elf(
        ("aclrtMalloc", False), ("HcclSend", False), ("malloc", False), ("aclOwn", True), ("rtKernelLaunch", False)
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("torch_npu/lib/libtorch_npu.so", library + b"\0aclnnAdd\0aclnnAddGetWorkspaceSize\0aclnnNew\0")
        archive.writestr("torch_npu/lib/other.so", elf(("aclOwn", False)) + b"\0HcclSend\0HcclSendFailed\0")
        archive.writestr("torch_npu/part/unused.so", elf(("aclUnused", False)))
        archive.writestr(
            "torch_npu/include/third_party/hccl/inc/hccl/hccl.h", "extern HcclResult HcclSend(void* data);"
        )
    needs = symbols.needs_of(wheel)
    assert needs.version == "9.9.0"
    assert needs.linked == {"aclrtMalloc", "HcclSend", "rtKernelLaunch"}
    assert needs.collectives == {"HcclSend"}
    assert needs.operators == {"aclnnAdd", "aclnnNew"}


def test_a_target_that_is_no_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="neither a wheel file"):
        symbols.report(tmp_path, ["newest"])
    with pytest.raises(ArgumentError, match="cannot be read as a wheel"):
        symbols.needs_of(tmp_path / "absent.whl")
    with zipfile.ZipFile(tmp_path / "empty.whl", "w"):
        pass
    with pytest.raises(ArgumentError, match="holds no library"):
        symbols.needs_of(tmp_path / "empty.whl")


def test_the_elf_reader_agrees_with_a_real_library() -> None:
    import safetensors

    library = next(Path(safetensors.__file__).parent.glob("*.so"))
    assert "PyInit__safetensors_rust" in symbols.defined(library.read_bytes())
    assert "PyErr_SetObject" in symbols.undefined(library.read_bytes())
