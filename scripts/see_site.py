"""Open every page of the site in a headless browser, in both themes and at the width of a phone.

    python scripts/see_site.py build/site --axe node_modules/axe-core/axe.min.js --json seen.json

It needs `pip install playwright`, a Chromium, and the package `axe-core` of npm, which checks contrast,
titles and alternative texts.  It lists errors of the console, requests to other places, pages that scroll
sideways, and what `axe-core` finds, and exits with 1 if there is any.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 720}
VIEWS = {"light": ("light", WIDE), "dark": ("dark", WIDE), "phone": ("light", PHONE)}
WAIT_MS = 180_000
RULES = {"runOnly": ["wcag2a", "wcag2aa", "best-practice"]}


def findings(page: Any, address: str, view: str, axe: str, shot: Path | None) -> list[str]:
    """Return what is wrong with a page in one view."""
    theme, size = VIEWS[view]
    wrong: list[str] = []

    def requested(request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            wrong.append(f"asks for {request.url}")

    def said(message: Any) -> None:
        if message.type in ("error", "warning"):
            wrong.append(f"console: {message.text}")

    page.on("request", requested)
    page.on("console", said)
    page.on("pageerror", lambda error: wrong.append(f"script: {error}"))
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=theme)
    page.set_default_timeout(WAIT_MS)
    page.goto(address, timeout=WAIT_MS)
    excess = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    if excess > 0:
        wrong.append(f"scrolls sideways by {excess} pixels")
    page.evaluate(axe)
    for one in page.evaluate("rules => axe.run(document, rules)", RULES)["violations"]:
        node = one["nodes"][0]
        wrong.append(
            f"{one['id']}, {len(one['nodes'])} times: {node['html'][:160]}; {node['failureSummary'][:200]}"
        )
    if shot is not None:
        page.screenshot(path=str(shot))
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=Path)
    parser.add_argument("--axe", type=Path, required=True)
    parser.add_argument("--browser", default="/usr/bin/chromium")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--shots", type=Path, help="a folder for a picture of each page and view")
    parser.add_argument("--pages", nargs="*", help="only these, relative to the site")
    asked = parser.parse_args()
    from playwright.sync_api import sync_playwright

    site = asked.site.resolve()
    names = asked.pages or sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    axe = asked.axe.read_text()
    found: dict[str, dict[str, list[str]]] = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=asked.browser, args=["--no-sandbox"])
        for name in names:
            for view in VIEWS:
                page = browser.new_page()
                shot = asked.shots and asked.shots / f"{name.replace('/', '_')}_{view}.png"
                wrong = findings(page, (site / name).as_uri(), view, axe, shot)
                page.close()
                if wrong:
                    found.setdefault(name, {})[view] = wrong
                    print(f"{name}, {view}", *wrong, sep="\n  ", flush=True)
        version = browser.version
        browser.close()
    print(f"Chromium {version}: {len(names)} pages in {len(VIEWS)} views, {len(found)} with findings")
    if asked.json:
        result = {"browser": version, "views": [*VIEWS], "pages": len(names), "findings": found}
        asked.json.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
