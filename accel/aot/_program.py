"""`Program`: a training step as StableHLO text, with what it was made by. Imports no torch."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

# The entry function as torch_xla 2.9 prints it: its signature in one line, where no type holds ", ", and its return.
_MAIN = re.compile(r"func\.func @main\((?P<arguments>.*?)\) -> \(?(?P<results>[^{]*?)\)? \{\n")
_RETURN = re.compile(r"^    return (?P<values>.*?) : (?P<types>.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """One optimizer step for one device. `replicas` devices run it together, each on a batch of its own; with more than
    one the gradients are averaged over them inside the program by one all_reduce.
    """

    text: str  # StableHLO
    replicas: int
    policy: str  # precision policy
    in_force: dict[str, str | int | float | bool | None] = field(default_factory=dict)  # numerics while it was recorded
    versions: dict[str, str] = field(default_factory=dict)  # of the packages that recorded it


def as_run(text: str) -> str:
    """`text`, as torch_xla exports it, brought to what a cut runs; "" where that is nothing.

    Outputs that only hand an argument back are left out: the export lists every live tensor, a cut those that changed.
    Arguments whose type is also an output's are marked as given away: parameters and optimizer state, which a cut
    updates in place. Without the mark they count twice in the memory.
    """
    found = _MAIN.search(text)
    ending = None if found is None else _RETURN.search(text, found.end())
    if found is None or ending is None:
        return ""  # no output at all
    pairs = zip(ending["values"].split(", "), ending["types"].split(", "), strict=True)
    kept = [(value, kind) for value, kind in pairs if not value.startswith("%arg")]
    if not kept:
        return ""
    types = ", ".join(kind for _, kind in kept)
    outputs = Counter(kind for _, kind in kept)
    arguments = []
    for argument in found["arguments"].split(", "):
        kind = argument.partition(": ")[2]
        outputs[kind] -= 1
        arguments.append(f"{argument} {{jax.buffer_donor = true}}" if outputs[kind] >= 0 else argument)
    return "".join(
        (
            text[: found.start()],
            f"func.func @main({', '.join(arguments)}) -> ({types}) {{\n",
            text[found.end() : ending.start()],
            f"    return {', '.join(value for value, _ in kept)} : {types}",
            text[ending.end() :],
        )
    )
