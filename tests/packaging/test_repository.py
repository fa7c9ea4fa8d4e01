"""What must hold for every file of the repository, and for the documents that restate the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from accel import _env

ROOT = Path(__file__).parents[2]
# Folders of one machine, and hosts or options that name a package registry; brackets keep the list from finding itself.
FORBIDDEN = re.compile(
    r"/wor[k]/|/roo[t]/|/hom[e]/|/far[m]/|/opt/[p]ypi|/opt/[w]heels"
    r"|[p]ypi\.org|[p]ythonhosted|download\.[p]ytorch|deb\.[d]ebian|registry\.[n]pmjs|--[e]xtra-index-url|--[i]ndex-url|--[t]rusted-host"
)


def files() -> list[Path]:
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def python_blocks(document: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL)


def test_no_file_names_a_machine_path_or_a_package_registry() -> None:
    found = []
    for path in files():
        for number, line in enumerate(path.read_bytes().decode(errors="replace").splitlines(), 1):
            if FORBIDDEN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:120]}")
    assert not found, "\n".join(found)


def test_every_setting_is_documented_and_no_other_is() -> None:
    documented = set(re.findall(r"^\| `(ACCEL_\w+)`", (ROOT / "docs" / "settings.md").read_text(), re.MULTILINE))
    assert documented == set(_env.SETTINGS)


def test_every_make_command_is_in_the_help() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = {line.split()[0] for line in listed.splitlines()}
    assert {"compare", "test", "lint", "docs", "prove", "clean", "help"} <= names


@pytest.mark.parametrize("document", ["README.md", "docs/quickstart.md"])
def test_the_first_example_of_a_document_runs_as_it_stands(document: str, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(python_blocks(document)[0])
    environ = {**os.environ, "ACCEL_BACKEND": "cpu"}
    done = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "loss" in done.stdout


@pytest.mark.parametrize("document", sorted(path.name for path in (ROOT / "docs").glob("*.md")))
def test_every_python_block_of_the_documentation_is_python(document: str) -> None:
    for block in python_blocks(f"docs/{document}"):
        compile(block, document, "exec")


def test_every_message_that_the_troubleshooting_page_quotes_is_one_that_the_library_gives() -> None:
    files = [path for folder in ("accel", "backends") for path in (ROOT / folder).rglob("*.py")]
    source = "\n".join(path.read_text() for path in files)
    source = re.sub(r'"\s*\n\s*f?"', "", source)  # literals that continue on the next line
    source = re.sub(r"\{[^{}]*\}", "{}", source)
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    quoted = re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^(`.*)\n: ", page, re.MULTILINE)))
    assert len(quoted) > 30
    parts = [part.strip(" ,") for message in quoted for part in message.split("...")]
    assert [part for part in parts if part not in source] == []
