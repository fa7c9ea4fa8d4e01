"""Lets a CUDA build of torch be imported on a machine without CUDA: stub libraries in place of the vendor's wheels.

    python .ci/cuda_stubs.py        # for the torch of the interpreter that runs it

torch 2.9 for x86-64 is published as a CUDA build only, and torch_xla 2.9 needs exactly that; its CUDA wheels are 4.4 GB
of which the XLA tests use nothing. This writes, into torch/lib, one small library for each CUDA library that torch is
linked against and that is absent, defining the symbols torch asks for. It is a convenience of CI and nothing else:
every call into such a library returns cudaErrorNoDevice, so `torch.cuda.is_available()` is False and anything that
needs CUDA fails. An environment that has it must not be used with a GPU. Needs gcc and readelf.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

CUDA = re.compile(r"lib(cu|nv|nccl)")
DRIVER = "libcuda.so.1"  # torch opens it by name at run time and does without it
ERROR = 100  # cudaErrorNoDevice in driver_types.h; not 0, "success", in any of the stubbed libraries
TEXT = re.compile(r"(Error|Status)_?(String|Name)|error_string|get_error", re.IGNORECASE)  # these return a `char *`
# Symbols that carry no version say by their prefix where they belong.
PREFIXES = {
    "libcufft": "cufft",
    "libcufile": "cuFile",
    "libcurand": "curand",
    "libcusolver": "cusolver",
    "libcusparseLt": "cusparseLt",
    "libnccl": "nccl",
    "libnvshmem": "nvshmem",
}


def stub(folder: Path) -> list[str]:
    """Write a stub for each absent CUDA library that the libraries in `folder` need; return their names."""
    own = {path.name: path for path in folder.iterdir() if ".so" in path.name}
    needed: set[str] = set()
    versioned: dict[str, set[str]] = defaultdict(set)
    plain: set[str] = set()
    for path in own.values():
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*?)\]", read("-d", path)))
        for name, version in re.findall(r"\bUND (\w+)(?:@+(\S+))?", read("--dyn-syms", path)):
            if version:
                versioned[version].add(name)
            else:
                plain.add(name)
    absent = sorted(name for name in needed - set(own) - {DRIVER} if CUDA.match(name))
    for name in absent:
        base = name.partition(".")[0].removesuffix("_host")
        versions = {v: names for v, names in versioned.items() if v.startswith(base + ".so") or v == base[3:].upper()}
        prefix = PREFIXES.get(base)
        loose = {symbol for symbol in plain if prefix and symbol.startswith(prefix)}
        build(folder / name, versions, loose)
    return absent


def build(library: Path, versions: dict[str, set[str]], loose: set[str]) -> None:
    """Compile one shared library with these symbols; `versions` maps a symbol version to its symbols."""
    lines = [
        'static const char *text = "stub: there is no CUDA here";',
        *(
            f"long {symbol}(void) {{ return {'(long)text' if TEXT.search(symbol) else ERROR}; }}"
            for symbol in sorted(loose.union(*versions.values()))
        ),
    ]
    script = [f"{version} {{ global: {'; '.join(sorted(names))}; }};" for version, names in sorted(versions.items())]
    with tempfile.TemporaryDirectory() as folder:
        source, versioning = Path(folder, "stub.c"), Path(folder, "stub.map")
        source.write_text("\n".join(lines))
        versioning.write_text("\n".join(script))
        command = ["gcc", "-w", "-shared", "-fPIC", "-fno-builtin", f"-Wl,-soname,{library.name}"]
        if script:
            command.append(f"-Wl,--version-script={versioning}")
        subprocess.run([*command, str(source), "-o", str(library)], check=True)


def read(option: str, path: Path) -> str:
    return subprocess.run(["readelf", "-W", option, str(path)], capture_output=True, text=True, check=True).stdout


def main() -> int:
    spec = importlib.util.find_spec("torch")  # finds it without importing it
    if spec is None or spec.origin is None:
        print("torch is not installed in this environment", file=sys.stderr)
        return 1
    for name in stub(Path(spec.origin).parent / "lib"):
        print(f"stub {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
