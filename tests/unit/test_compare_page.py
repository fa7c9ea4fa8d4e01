"""The comparison page in a real browser: it fits a laptop's and a phone's width, and shows what it is to show."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from accel.compare import compare, with_published, write_html
from tests.unit.test_compare import record
from tests.unit.test_compare_cost import H100
from tests.unit.test_compare_judgement import on

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
WIDTHS = (1280, 390)  # px: a laptop, a phone

# The page in a frame of a device's width; the title then holds what the frame's document measures.
HOST = """<!doctype html><title>waiting</title>
<iframe id="f" style="border:0;width:{width}px;height:2000px" srcdoc="{page}"></iframe>
<script>
document.getElementById("f").onload = event => {{
  const d = event.target.contentDocument, r = e => e.getBoundingClientRect();
  d.querySelectorAll("details").forEach(e => e.open = true);
  const small = [...d.querySelectorAll("figure svg")].filter(e => r(e).width < 200).length;
  document.title = JSON.stringify({{
    wide: d.documentElement.scrollWidth, plots: d.querySelectorAll("figure svg").length, small,
    text: d.body.innerText.length, height: d.documentElement.scrollHeight,
    outside: [...d.querySelectorAll("main *")].filter(
      e => !e.closest(".wide, .scroll, svg") && r(e).right > {width} + 1).map(e => e.outerHTML.slice(0, 80)),
  }});
}};
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A report with everything in it: groups, warnings, costs, scaling, parity, published runs."""
    runs = [
        on(1, 32.0, warnings=["a warning that is long enough to need a second line on a narrow screen, as they are"]),
        on(2, 60.0),
        record("h100", **H100),
        record("emulated", **H100, origin="emulated"),
        *(record(f"run {i}", hardware__chip__value=f"A chip with a rather long name {i}") for i in range(4)),
    ]
    folder = tmp_path_factory.mktemp("page")
    return write_html(with_published(compare(runs)), folder / "page.html").read_text()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_fits_the_screen_in_a_browser(page: str, width: int, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no browser is installed")
    host, shot = tmp_path / "host.html", tmp_path / "page.png"
    host.write_text(HOST.format(width=width, page=html.escape(page)))
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    flags += ["--disable-dev-shm-usage", f"--window-size={width + 40},2000", "--virtual-time-budget=20000"]
    dump = [browser, *flags, "--dump-dom", host.as_uri()]
    done = subprocess.run(dump, capture_output=True, text=True, timeout=120, check=True)
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title is not None
    found = json.loads(html.unescape(title[1]))
    assert found["wide"] <= width, found
    assert found["outside"] == [], found
    assert found["plots"] >= 6
    assert found["small"] == 0, found
    assert found["text"] > 3000
    picture = [browser, *flags, f"--screenshot={shot}", host.as_uri()]
    subprocess.run(picture, capture_output=True, timeout=120, check=True)
    assert shot.read_bytes().startswith(b"\x89PNG")
