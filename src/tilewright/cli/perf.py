"""The line that ends what a verb times: ``Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>``."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import typer

from tilewright.cli.console import working
from tilewright.targets.target import TARGETS
from tilewright.tune.measure import do_bench


def perf(call: Callable[[], object], target: str, flops: float, moved: int, name: str) -> None:
    """Time a call, and print the line.

    Args:
        call: what is timed.
        target: where it runs.
        flops: of one call.
        moved: bytes of its arrays, once each.
        name: what it is.
    """
    if TARGETS[target].machine_code:
        with working("timing"):
            ms = do_bench(call, target)
    else:  # it executes operation by operation to find hazards; its time says nothing about a machine
        begun = time.perf_counter()
        call()
        ms = 1e3 * (time.perf_counter() - begun)
    typer.echo(f"Perf: {ms:.4g} ms, {flops / ms / 1e9:.4g} TFlops, {moved / ms / 1e6:.4g} GB/s, {name}")


def by(extents: Sequence[int]) -> str:
    """Extents with x between them."""
    return "x".join(map(str, extents))
