"""Make the pictures of reports and of the site again: docs/pictures/reports and docs/pictures/site.

    python scripts/picture_pages.py build/site

It needs `pip install playwright` and a Chromium.  No GPU is needed: the reports compile for absent machines.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from scripts.see_site import FLAGS, PHONE, WIDE

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs" / "pictures"
COLOURS = 64
STEP = "docs/tutorial/step1_eight_lines.py:linear"
SQUARE = "A=4096x4096:bf16,B=4096x4096:bf16,C=4096x4096:bf16"
WGMMA = (
    "--set mma=tw.TiledMma(tw.atoms.wgmma(tw.bf16,256)) --set stages=4 --set buffers=2 --set blocks=132 "
    "--set group=16"
)


class Picture(NamedTuple):
    """A report's command or a page of the site, and its theme, its size, the element at its top."""

    shown: str
    theme: str = "light"
    size: tuple[int, int] = (1050, 2250)
    at: str = ""


LINES = f"{STEP} --shape {SQUARE},bias=4096:bf16"
HEADS = "1x8x4096x128:f16"
REPORTS = {
    "eight_lines_cpu": Picture(
        f"{STEP} --shape A=512x512:f32,B=512x512:f32,C=512x512:f32,bias=512:f32 --target cpu"
    ),
    "eight_lines_gfx942": Picture(f"{LINES} --target hip --arch gfx942"),
    "eight_lines_sm_90a_phone": Picture(f"{LINES} --target cuda --arch sm_90a", "dark", (500, 1600)),
    "hopper_gemm": Picture(
        f"examples/03_hopper_gemm.py:hopper_gemm --shape {SQUARE} {WGMMA} --target cuda --arch sm_90a"
    ),
    "attention": Picture(f"attention {HEADS} {HEADS} {HEADS} --target cuda --arch sm_90a"),
}
SITE = {
    "home": Picture("index.html", "light", (WIDE["width"], WIDE["height"])),
    "performance": Picture("performance.html", "light", (WIDE["width"], WIDE["height"])),
    "decision": Picture(
        "decisions/0030-operands-are-shared-in-clusters-or-read-once.html", "dark", (1280, 900)
    ),
    "reference": Picture("reference/tw.html", "dark", (1280, 900), "tw.matmul"),
    "phone": Picture("dataflow.html", "light", (PHONE["width"], PHONE["height"])),
}


def report(command: str, place: Path) -> str:
    """Write a report, without the time on this machine, and return its address."""
    import shlex

    from typer.testing import CliRunner

    from tilewright.cli.verbs import app

    words = ["report", *shlex.split(command), "--no-measure", "-o", str(place)]
    ended = CliRunner().invoke(app, words)
    if ended.exit_code:
        raise SystemExit(ended.output)
    return place.as_uri()


def shot(browser: Any, address: str, picture: Picture) -> bytes:
    """Return a page as a PNG of few colours."""
    width, height = picture.size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=picture.theme)
    page.goto(address + (f"#{picture.at}" if picture.at else ""))
    page.wait_for_timeout(1500)  # a long page scrolls to its anchor after it is loaded
    found = page.screenshot()
    page.close()
    made = io.BytesIO()
    few = Image.open(io.BytesIO(found)).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE)
    few.save(made, "PNG", optimize=True)
    return made.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=lambda text: Path(text).resolve())
    parser.add_argument("--browser", default="/usr/bin/chromium")
    parser.add_argument("--only", nargs="*", help="names of pictures")
    asked = parser.parse_args()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver, tempfile.TemporaryDirectory() as place:
        browser = driver.chromium.launch(executable_path=asked.browser, args=FLAGS)
        for folder, pictures in (("reports", REPORTS), ("site", SITE)):
            for name, picture in pictures.items():
                if asked.only and name not in asked.only:
                    continue
                address = (
                    report(picture.shown, Path(place) / f"{name}.html")
                    if folder == "reports"
                    else (asked.site / picture.shown).as_uri()
                )
                made = shot(browser, address, picture)
                (PICTURES / folder / f"{name}.png").write_bytes(made)
                print(f"{folder}/{name}.png, {len(made)} bytes", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
