"""`tilewright cache`: what compiled kernels take on disk, and removing them."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli.console import choose, reports, say, size
from tilewright.runtime.cache import Cache
from tilewright.runtime.environment import CACHE_BYTES, CACHE_DIR

ACTIONS = ("stats", "clear")


@reports
def cache(
    action: Annotated[
        str, typer.Argument(help="stats: what it holds; clear: remove every kernel.")
    ] = "stats",
) -> None:
    """Show or clear the cache of compiled kernels."""
    choose("action", action, ACTIONS)
    kept = Cache.default()
    held = kept.stats()
    if (reason := kept.distrust()) is not None:
        say("not used", f"{kept.root}: {reason}; set {CACHE_DIR} to a directory of yours")
    if action == "clear":
        count = kept.clear()
        say("cleared", f"{count} kernel{'s' * (count != 1)}, {size(held.bytes)}")
        return
    say("directory", f"{held.root} (set {CACHE_DIR} to keep it elsewhere)")
    say("kernels", f"{held.entries}, {size(held.bytes)}")
    say("limit", f"{size(held.capacity_bytes)} (set {CACHE_BYTES}, e.g. to 256MiB)")
