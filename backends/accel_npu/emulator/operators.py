"""The emulated CANN operators: reads `ops/*.def` and `refusals.def`, and writes the C++ that libopapi.so is built of.

A line of a `.def` file is one operator: `Name(Type argument, ...) = body`. The arguments are those of
`aclnnNameGetWorkspaceSize` in order, without its last two; the body is one or more C++ statements over libtorch values
of the same names. A line of `refusals.def` says what an argument takes on a 910B where libtorch takes more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from accel.errors import AccelError

HERE = Path(__file__).parent

# Type in a .def file: C type of the acl argument, and how the body's value is made of it (None: it is the value).
TYPES: dict[str, tuple[str, str | None]] = {
    "Tensor": ("const aclTensor*", "tensor"),
    "Tensors": ("const aclTensorList*", "tensors"),
    "Scalar": ("const aclScalar*", "scalar"),
    "Scalar?": ("const aclScalar*", "maybe"),
    "Scalars": ("const aclScalarList*", "scalars"),
    "Ints": ("const aclIntArray*", "ints"),
    "Bools": ("const aclBoolArray*", "bools"),
    "dtype": ("aclDataType", "type_of"),
    "int64": ("int64_t", None),
    "int8": ("int8_t", None),
    "bool": ("bool", None),
    "double": ("double", None),
    "float": ("float", None),
    "text": ("char*", "std::string"),
}
SCALAR_TYPES = {"float": "kFloat", "half": "kHalf", "bfloat16": "kBFloat16", "double": "kDouble", "bool": "kBool",
                "int8": "kChar", "int16": "kShort", "int32": "kInt", "int64": "kLong", "uint8": "kByte"}  # fmt: skip
_OPERATOR = re.compile(r"(\w+)\((.*?)\) = (.+)")
_REFUSAL = re.compile(r"(\w+) ([\w ]+?): ([\w ]+?) \| (.+)")


@dataclass(frozen=True)
class Operator:
    """One line of a `.def` file. `arguments`: type and name of each."""

    name: str
    arguments: tuple[tuple[str, str], ...]
    body: str


@dataclass(frozen=True)
class Refusal:
    """What a 910B takes: `dtypes` for each of `arguments` of operator `name`, as `source` says."""

    name: str
    arguments: tuple[str, ...]
    dtypes: tuple[str, ...]
    source: str


def operators(folder: Path = HERE / "ops") -> list[Operator]:
    """Every operator of every `.def` file, in the order of the files' names. Raises `AccelError` for a bad line."""
    found: dict[str, Operator] = {}
    for path in sorted(folder.glob("*.def")):
        for where, line in _lines(path):
            match = _OPERATOR.fullmatch(line)
            if match is None:
                raise AccelError(f"{where}: {line!r} is not `Name(Type argument, ...) = body`")
            name, arguments, body = match.groups()
            pairs = [one.strip().partition(" ")[::2] for one in arguments.split(",")]
            unknown = [kind for kind, _ in pairs if kind not in TYPES]
            if unknown:
                raise AccelError(f"{where}: type {unknown[0]!r} of {name}; expected one of {', '.join(TYPES)}")
            if name in found:
                raise AccelError(f"{where}: {name} is already defined in another line")
            found[name] = Operator(name, tuple(pairs), body)
    return list(found.values())


def refusals(path: Path = HERE / "refusals.def") -> list[Refusal]:
    """Every line of `refusals.def`. Raises `AccelError` for one that cannot be read."""
    found = []
    for where, line in _lines(path):
        match = _REFUSAL.fullmatch(line)
        dtypes = match.group(3).split() if match else []
        unknown = [dtype for dtype in dtypes if dtype not in SCALAR_TYPES]
        if match is None or unknown:
            raise AccelError(f"{where}: {line!r} is not `Name argument ...: dtype ... | source`")
        found.append(Refusal(match.group(1), tuple(match.group(2).split()), tuple(dtypes), match.group(4)))
    return found


def generate(chosen: Iterable[Operator], limits: Iterable[Refusal]) -> str:
    """C++ source of the operators."""
    checks: dict[str, list[Refusal]] = {}
    for limit in limits:
        checks.setdefault(limit.name, []).append(limit)
    parts = ['#include "layers.h"', "using namespace emu;"]
    parts += [_definition(operator, checks.get(operator.name, [])) for operator in chosen]
    return "\n".join(parts) + "\n"


def _definition(operator: Operator, limits: list[Refusal]) -> str:
    symbol = f"aclnn{operator.name}"
    parameters = ", ".join(f"{TYPES[kind][0]} acl_{name}" for kind, name in operator.arguments)
    values = " ".join(
        f"auto {name} = {convert}(acl_{name});" if (convert := TYPES[kind][1]) else f"auto {name} = acl_{name};"
        for kind, name in operator.arguments
    )
    accepted = " ".join(
        f'accept("{symbol}", "{argument}", {argument}, {{{_types(limit)}}});'
        for limit in limits
        for argument in limit.arguments
    )
    return (
        f"EMU_API int {symbol}GetWorkspaceSize({parameters}, uint64_t* bytes_, aclOpExecutor** executor_) {{\n"
        f"  *bytes_ = 0;\n"
        f'  return prepare("{symbol}", executor_, [&]() -> std::function<void()> {{\n'
        f"    {values}\n    {accepted}\n"
        f"    return [=]() mutable {{ {operator.body}; }};\n"
        f"  }});\n}}\n"
        f"EMU_API int {symbol}(void*, uint64_t, aclOpExecutor* executor, void* stream) {{\n"
        f"  return run(executor, stream);\n}}"
    )


def _types(limit: Refusal) -> str:
    return ", ".join(f"at::{SCALAR_TYPES[dtype]}" for dtype in limit.dtypes)


def _lines(path: Path) -> list[tuple[str, str]]:
    numbered = enumerate(path.read_text().splitlines(), 1)
    return [(f"{path.name}:{number}", line.strip()) for number, line in numbered if line.strip() and line[0] != "#"]
