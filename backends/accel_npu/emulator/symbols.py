"""What a torch_npu wheel asks of CANN, compared with what the emulator gives; wheels are read, never installed.

Two kinds of need: names that the dynamic linker must find, without which torch_npu does not load; and names that it
looks up when it runs: functions of HCCL, and operators, without which that operator falls back or is refused.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from accel.errors import ArgumentError, BackendError
from accel_npu.emulator import operators

# C interfaces of CANN by prefix: runtime, collectives, profiling, the runtime below ACL, graph engine.
_CANN = re.compile(r"(?:acl|Hccl|Msprof|rt[A-Z]|hccl|_ZNK?2ge|_ZN4hccl|ge[A-Z]|mstx|adx)")
_COLLECTIVE = re.compile(rb"\0(Hccl[A-Z]\w+)(?=\0)")
_DECLARED = re.compile(r"\b(Hccl[A-Z]\w+)\s*\(")
_HEADER = "torch_npu/include/third_party/hccl/inc/hccl/hccl.h"
_OPERATOR = re.compile(rb"\0(aclnn[A-Z]\w*?)(?:GetWorkspaceSize)?(?=\0)")
# What `import torch_npu` loads. Libraries of its sub-packages, such as the graph compiler's, load when they are used.
_LOADED = re.compile(r"torch_npu/(?:lib/)?[^/]+\.so")


@dataclass(frozen=True)
class Needs:
    """Of one wheel: its version, names to link, and functions of HCCL and operators looked up at run time."""

    version: str
    linked: frozenset[str]
    collectives: frozenset[str]
    operators: frozenset[str]


def report(libraries: Path, targets: list[str]) -> int:
    """Print what each target (a wheel file or a version; none: the installed torch_npu) needs and the emulator lacks.
    The exit code is 1 when a name to link is lacking, else 0.
    """
    given = frozenset(name for path in libraries.glob("*.so") for name in defined(path.read_bytes()))
    known = frozenset(f"aclnn{one.name}" for one in operators.operators())
    code = 0
    with tempfile.TemporaryDirectory(prefix="accel-symbols-") as scratch:
        for needs in [_read(target, Path(scratch)) for target in targets] or [_installed()]:
            missing = sorted(needs.linked - given)
            print(f"torch_npu {needs.version}: {len(needs.linked)} CANN symbols to link, {len(missing)} lacking")  # noqa: T201
            print(*(f"  {name}" for name in missing), sep="\n", end="\n" if missing else "")  # noqa: T201
            unknown = sorted(needs.collectives - given)
            print(  # noqa: T201
                f"torch_npu {needs.version}: {len(needs.collectives)} functions of HCCL looked up at run time, "
                f"lacking: {', '.join(unknown) or 'none'}"
            )
            emulated = needs.operators & known
            print(  # noqa: T201
                f"torch_npu {needs.version}: {len(needs.operators)} operators looked up at run time, "
                f"{len(emulated)} emulated; what the others compute falls back to the CPU"
            )
            code = code or int(bool(missing))
    return code


def needs_of(wheel: Path) -> Needs:
    """What the wheel file asks of CANN. Raises `ArgumentError` when it is not a torch_npu wheel."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if _LOADED.fullmatch(name)]
            contents = [archive.read(name) for name in names]
            header = archive.read(_HEADER).decode() if _HEADER in archive.namelist() else ""
    except (OSError, zipfile.BadZipFile) as error:
        raise ArgumentError(f"{str(wheel)!r} cannot be read as a wheel: {error}") from error
    if not contents:
        raise ArgumentError(f"{str(wheel)!r} holds no library of torch_npu")
    return _needs(wheel.name.split("-")[1] if "-" in wheel.name else wheel.name, contents, header)


def defined(library: bytes) -> frozenset[str]:
    """Names that an ELF library defines."""
    return frozenset(name for name, is_defined in _dynamic_symbols(library) if is_defined)


def undefined(library: bytes) -> frozenset[str]:
    """Names that an ELF library expects of others."""
    return frozenset(name for name, is_defined in _dynamic_symbols(library) if not is_defined)


def _needs(version: str, libraries: list[bytes], header: str) -> Needs:
    own = frozenset().union(*map(defined, libraries))
    wanted = frozenset().union(*map(undefined, libraries)) - own
    looked_up = {match.decode() for library in libraries for match in _OPERATOR.findall(library)}
    # Names of collectives stand in messages too: those that the header declares are functions.
    named = {match.decode() for library in libraries for match in _COLLECTIVE.findall(library)}
    linked = frozenset(name for name in wanted if _CANN.match(name))
    return Needs(version, linked, frozenset(named & set(_DECLARED.findall(header))), frozenset(looked_up))


def _read(target: str, scratch: Path) -> Needs:
    if target.endswith(".whl"):
        return needs_of(Path(target))
    if not re.fullmatch(r"\d+(\.\w+)+", target):
        raise ArgumentError(f"{target!r} is neither a wheel file (*.whl) nor a version of torch_npu, such as 2.13.0")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest"]
    done = subprocess.run(
        [*download, str(scratch), f"torch_npu=={target}"], capture_output=True, text=True, check=False
    )
    found = sorted(scratch.glob(f"torch_npu-{target}-*.whl"))
    if done.returncode or not found:
        reason = (done.stderr.strip().splitlines() or ["pip gave no file"])[-1]
        raise BackendError(f"torch_npu {target} could not be downloaded: {reason}; give the path of a wheel instead")
    return needs_of(found[0])


def _installed() -> Needs:
    from accel_npu.emulator import packages

    pair = packages.find()
    folder = pair.torch_npu_folder
    loaded = [path for path in folder.rglob("*.so") if _LOADED.fullmatch(f"torch_npu/{path.relative_to(folder)}")]
    header = (folder.parent / _HEADER).read_text()
    return _needs(pair.torch_npu, [path.read_bytes() for path in sorted(loaded)], header)


def _dynamic_symbols(library: bytes) -> Iterator[tuple[str, bool]]:
    """Name and whether it is defined, of each entry of the dynamic symbol table (ELF-64, little-endian)."""
    if library[:6] != b"\x7fELF\x02\x01":
        return
    (section_start,) = struct.unpack_from("<Q", library, 0x28)
    entry_size, count = struct.unpack_from("<HH", library, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", library, section_start + i * entry_size) for i in range(count)]
    for kind, offset, size, link in ((s[1], s[4], s[5], s[6]) for s in sections):
        if kind != 11:  # SHT_DYNSYM
            continue
        names = sections[link][4]
        for start in range(offset + 24, offset + size, 24):  # the first entry is empty
            name, _info, _other, section = struct.unpack_from("<IBBH", library, start)
            end = library.index(b"\0", names + name)
            yield library[names + name : end].decode(), section != 0
