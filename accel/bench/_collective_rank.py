"""One rank of `accel bench collectives`, as the launcher starts it: measure what the command line asked for, and let
rank 0 write and show it.

`python -m accel.bench._collective_rank JSON`, where JSON holds the fields of `Asked`.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import rich

from accel.bench import bandwidth, collectives
from accel.errors import AccelError


@dataclass(frozen=True)
class Asked:
    """A plan, where its record goes, and the command line for it."""

    plan: collectives.Plan
    out: str
    plot: bool
    command: str

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Asked:
        data = json.loads(text)
        fields: dict[str, Any] = data.pop("plan")
        fields.update({name: tuple(value) for name, value in fields.items() if isinstance(value, list)})
        return cls(plan=collectives.Plan(**fields), **data)


def run(asked: Asked) -> int:
    """Measure on this rank; the exit code: 1 on rank 0 where a value was wrong."""

    def told(row: collectives.Row) -> None:
        size = bandwidth.words(row.size)
        print(f"{row.operation} {row.dtype} {size}: {row.seconds * 1e6:.1f} us", file=sys.stderr, flush=True)  # noqa: T201

    outcome = collectives.run(asked.plan, asked.out, asked.command, told, plot=asked.plot)
    return 0 if outcome is None else _show(*outcome)


def _show(path: Path, data: dict[str, Any]) -> int:
    from accel.bench._collective_record import lines

    console = rich.get_console()
    wrong = sum(row["wrong_elements"] for row in data["rows"])
    verdict = [f"# {wrong} elements had a wrong value: do not trust this fabric"] if wrong else []
    for line in (*lines(data), *verdict, f"record: {path}"):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 1 if wrong else 0


def main() -> NoReturn:
    try:
        sys.exit(run(Asked.from_json(sys.argv[1])))
    except AccelError as error:
        print(f"accel: {error.line}", file=sys.stderr)  # noqa: T201
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
