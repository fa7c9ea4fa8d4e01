"""Runs a command of accel from a bare checkout: nothing installed, no network, the machine's own torch.

    python .ci/bare.py conformance --backend cuda --out DIR

Backends are found through the metadata that an installation leaves; this writes the same lines to a temporary folder
for the one command. It says which of accel's own requirements the machine lacks, and what of them must be there.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
OPTIONAL = {"jsonschema"}  # without it records are written unchecked, and say so


def main(arguments: list[str]) -> int:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [re.match(r"[\w-]+", requirement)[0] for requirement in project["dependencies"]]  # type: ignore[index]
    missing = [name for name in needed if importlib.util.find_spec(name) is None and name not in OPTIONAL]
    if missing:
        print(
            f"this machine's Python ({sys.executable}) lacks {', '.join(missing)}, which accel needs", file=sys.stderr
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="accel-bare-") as folder:
        info = Path(folder) / f"accel_torch-{project['version']}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: accel-torch\nVersion: {project['version']}\n")
        points = [
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
            for group, entries in project["entry-points"].items()
        ]
        (info / "entry_points.txt").write_text("\n".join(points))
        paths = [folder, str(ROOT), str(ROOT / "backends"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        return subprocess.run([sys.executable, "-m", "accel", *arguments], env=environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
