"""Open every page of the site in a headless browser, in both themes and at the width of a phone.

    python scripts/see_site.py build/site --axe node_modules/axe-core/axe.min.js --json docs/site_seen.json

It needs `pip install playwright`, a Chromium, and the package `axe-core` of npm, which checks contrast,
titles and alternative texts.  It lists errors of the console, requests to other places, pages that scroll
sideways, and what `axe-core` finds, and exits with 1 if there is any.

Each page is loaded once and seen in all views.  The file of `--json` is written after each page.  A later
call with `--resume` skips the pages in it that have not changed since and had no findings, and with
`--pages` it keeps what the file says of the other pages of the site.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 375, "height": 720}
VIEWS = {"light": ("light", WIDE), "dark": ("dark", WIDE), "phone": ("light", PHONE)}
RULES = {"runOnly": ["wcag2a", "wcag2aa", "best-practice"], "resultTypes": ["violations"], "preload": False}
IN_DARK = {**RULES, "runOnly": {"type": "rule", "values": ["color-contrast"]}}
"""Themes differ only in colours, so the other rules need not run a second time at the same width."""

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SIDEWAYS = """() => {
  const root = document.documentElement, excess = root.scrollWidth - root.clientWidth;
  if (excess <= 0) return null;
  const far = [...document.querySelectorAll("body *")].filter(
    (one) => one.getBoundingClientRect().right > root.clientWidth + 1);
  return [excess, far.length ? far[far.length - 1].outerHTML.slice(0, 160) : ""];
}"""


async def findings(page: Any, address: str, axe: str, shots: str | None) -> dict[str, list[str]]:
    """Return what is wrong with a page, by view; what its console says is in the first."""
    wrong: dict[str, list[str]] = {view: [] for view in VIEWS}
    said = wrong[next(iter(VIEWS))]
    page.on(
        "request",
        lambda one: (
            None if one.url.startswith(("file:", "data:", "blob:")) else said.append(f"asks for {one.url}")
        ),
    )
    page.on(
        "console",
        lambda one: said.append(f"console: {one.text}") if one.type in ("error", "warning") else None,
    )
    page.on("pageerror", lambda error: said.append(f"script: {error}"))
    await page.goto(address)
    await page.evaluate(axe)
    for view, (theme, size) in VIEWS.items():
        await page.set_viewport_size(size)
        await page.emulate_media(color_scheme=theme)
        if excess := await page.evaluate(SIDEWAYS):
            wrong[view].append("scrolls sideways by {} pixels: {}".format(*excess))
        rules = IN_DARK if view == "dark" else RULES
        for one in (await page.evaluate("rules => axe.run(document, rules)", rules))["violations"]:
            nodes = "".join(
                f"\n    {node['html'][:160]}; {node['failureSummary'][:200]}" for node in one["nodes"][:3]
            )
            wrong[view].append(f"{one['id']}, {len(one['nodes'])} times:{nodes}")
        if shots:
            await page.screenshot(path=f"{shots}_{view}.png")
    return {view: list(dict.fromkeys(found)) for view, found in wrong.items() if found}


async def walk(asked: argparse.Namespace, seen: dict[str, Any], todo: list[str]) -> str:
    """See the pages ``todo``, some at a time, and note what is wrong; return the browser's version."""
    from playwright.async_api import Error, async_playwright

    axe, queue = asked.axe.read_text(), list(reversed(todo))
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path=asked.browser, args=FLAGS)

        async def see() -> None:
            while queue:
                name = queue.pop()
                page = await browser.new_page()
                page.set_default_timeout(asked.seconds * 1000)
                shots = asked.shots and str(asked.shots / name.replace("/", "_").removesuffix(".html"))
                try:
                    address = (asked.site / name).as_uri()
                    found = await asyncio.wait_for(findings(page, address, axe, shots), asked.seconds)
                except (Error, TimeoutError) as error:
                    found = {
                        "light": [f"not seen in {asked.seconds} s: {type(error).__name__} {error}"[:300]]
                    }
                await page.close()
                seen[name] = {"hash": digest(asked.site / name), "findings": found}
                for view, wrong in found.items():
                    print(f"{name}, {view}", *wrong, sep="\n  ", flush=True)
                if asked.json:
                    asked.json.write_text(record(browser.version, seen))

        await asyncio.gather(*[see() for _ in range(asked.at_once)])
        version = browser.version
        await browser.close()
    return str(version)


def digest(path: Path) -> str:
    """Return a short hash of a page."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def kept(site: Path, before: dict[str, Any], names: list[str], there: list[str]) -> dict[str, Any]:
    """Return what an earlier call found on pages that are ``there`` and need not be seen now."""
    return {
        name: one
        for name, one in before.items()
        if name in there
        and (name not in names or (not one["findings"] and one["hash"] == digest(site / name)))
    }


def record(version: str, seen: dict[str, Any]) -> str:
    """Return the text of the file of results; the hash of each page says what was seen."""
    with_findings = sum(bool(one["findings"]) for one in seen.values())
    head = {"browser": f"Chromium {version}", "views": [*VIEWS]}
    counts = {"pages": len(seen), "with_findings": with_findings}
    return json.dumps({**head, **counts, "seen": dict(sorted(seen.items()))}, indent=1) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=lambda text: Path(text).resolve())
    parser.add_argument("--axe", type=Path, required=True)
    parser.add_argument("--browser", default="/usr/bin/chromium")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--seconds", type=float, default=300, help="the time limit of each page")
    parser.add_argument("--at-once", type=int, default=2, help="number of pages that are open at once")
    parser.add_argument("--shots", type=Path, help="a folder for a picture of each page and view")
    parser.add_argument("--pages", nargs="*", help="only these, relative to the site")
    asked = parser.parse_args()
    there = sorted(path.relative_to(asked.site).as_posix() for path in asked.site.rglob("*.html"))
    names = asked.pages or there
    seen: dict[str, Any] = {}
    if asked.resume and asked.json and asked.json.exists():
        before = json.loads(asked.json.read_text())["seen"]
        seen = kept(asked.site, before, names, there)
    version = asyncio.run(walk(asked, seen, [name for name in names if name not in seen]))
    if asked.json:
        asked.json.write_text(record(version, seen))
    wrong = sum(bool(one["findings"]) for one in seen.values())
    print(f"Chromium {version}: {len(seen)} pages in {len(VIEWS)} views, {wrong} with findings")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
