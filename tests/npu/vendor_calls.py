"""Which functions of `torch.npu` accel calls, and whether a torch_npu has them with a signature that fits; nothing is
imported: both sides are read as source.
"""

from __future__ import annotations

import ast
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
# Our files that call it, and how each spells `torch.npu`.
SOURCES = ("accel/eager.py", "accel/eager_memory.py", *(f"backends/accel_npu/{name}.py" for name in (
    "device", "memory", "numerics", "table", "transport")))  # fmt: skip
SPELLINGS = ("self._module", "torch_npu.npu", "torch.npu")

Read = Callable[[str], "str | None"]  # the text of a file below the package's folder, or None


class Use(NamedTuple):
    """One use of `torch.npu.<path>`; `call` is None where it is read or written, not called."""

    path: str
    call: ast.Call | None
    where: str


def uses() -> Iterator[Use]:
    for source in SOURCES:
        tree = ast.parse((ROOT / source).read_text())
        inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and id(node) not in inner:
                spelt = ast.unparse(node)
                for spelling in SPELLINGS:
                    if spelt.startswith(spelling + "."):
                        yield Use(spelt[len(spelling) + 1 :], called.get(id(node)), f"{source}:{node.lineno}")


def in_wheel(wheel: Path) -> Read:
    archive = zipfile.ZipFile(wheel)
    names = set(archive.namelist())
    return lambda file: archive.read(f"torch_npu/{file}").decode() if f"torch_npu/{file}" in names else None


def in_folder(folder: Path) -> Read:
    return lambda file: (folder / file).read_text() if (folder / file).is_file() else None


def wrong(read: Read) -> list[str]:
    """One line for each use that this torch_npu does not have, or has with another signature."""
    return [f"{use.where}: torch.npu.{use.path}: {why}" for use in uses() if (why := _wrong(read, use)) is not None]


def _wrong(read: Read, use: Use) -> str | None:
    file, names = "npu/__init__.py", use.path.split(".")
    for position, name in enumerate(names):
        found = _defined(read, file, name)
        if isinstance(found, str):  # a submodule
            file = found
            continue
        if isinstance(found, ast.ClassDef):
            rest = names[position + 1 :]
            told = {node.value for node in ast.walk(found) if isinstance(node, ast.Constant)} | {
                target.id for node in found.body if isinstance(node, ast.Assign) for target in node.targets
                if isinstance(target, ast.Name)
            }  # fmt: skip
            return None if set(rest) <= told else f"class {found.name} knows no {'.'.join(rest)}"
        if found is None:
            return f"{name!r} is not defined in {file}"
        return None if use.call is None else _misfit(found, use.call)
    return None


def _defined(read: Read, file: str, name: str) -> ast.FunctionDef | ast.ClassDef | str | None:
    """The definition of `name` in a module, followed through imports and plain assignments; a file for a submodule."""
    folder = file.rpartition("/")[0]
    text = read(file)
    if text is None:
        return None
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return node
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
            value = node.value.func if isinstance(node.value, ast.Call) else node.value
            if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name):
                return _defined(read, f"{folder}/{value.value.id}.py", value.attr)
        if isinstance(node, ast.ImportFrom) and node.module:
            inside = f"{folder}/{node.module.replace('.', '/')}.py" if node.level == 1 else (
                node.module.removeprefix("torch_npu.").replace(".", "/") + ".py")  # fmt: skip
            for alias in node.names:
                if (alias.asname or alias.name) == name or alias.name == "*":
                    found = _defined(read, inside, name if alias.name == "*" else alias.name)
                    if found is not None:
                        return found
    submodule = f"{folder}/{name}.py"
    return submodule if read(submodule) is not None else None


def _misfit(function: ast.FunctionDef, call: ast.Call) -> str | None:
    given = function.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    keywords = {keyword.arg for keyword in call.keywords}
    if len(call.args) > len(names) and given.vararg is None:
        return f"takes {len(names)} positional argument(s), {len(call.args)} are given"
    unknown = keywords - set(names) - {argument.arg for argument in given.kwonlyargs}
    if unknown and given.kwarg is None:
        return f"takes no {', '.join(sorted(map(str, unknown)))}"
    needed = names[: len(names) - len(given.defaults)]
    missing = [name for name in needed[len(call.args) :] if name not in keywords]
    return f"needs {', '.join(missing)}" if missing else None
