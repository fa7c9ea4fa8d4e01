"""How the documentation is built: Sphinx with MyST Markdown pages and an API reference read from the docstrings."""

from __future__ import annotations

import importlib.metadata
import re
from typing import Any

project = "accel"
author = "The accel authors"
copyright = "The accel authors, Apache License 2.0"
version = release = importlib.metadata.version("accel-torch")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_static_path = ["_static"]
exclude_patterns = ["tables/collectives.md", "tables/memory.md"]  # parts of other pages
html_css_files = ["tables.css"]
html_title = f"accel {version}"
html_show_sphinx = False
default_role = "code"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_use_type_comments = False
autodoc_default_options = {"members": True, "show-inheritance": True}
python_maximum_signature_line_length = 100


def escape_prose(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain prose with code in backticks: outside of those, no character is markup."""
    for index, line in enumerate(lines):
        parts = re.split(r"(`[^`]*`)", line)
        lines[index] = "".join(part if part.startswith("`") else re.sub(r"([*_|\\])", r"\\\1", part) for part in parts)


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", escape_prose)
