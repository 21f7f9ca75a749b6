"""`tilewright profile`: every candidate of a product, measured, or the reason why it was not."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tilewright.cli.console import UsageError, duration, reports, say
from tilewright.cli.measuring import Bar, products, read_clocks
from tilewright.cli.options import (
    Element,
    ExactOrTf32,
    MostCandidates,
    OperandLayout,
    Processes,
    Seed,
    TargetName,
)
from tilewright.dtypes import dtype as dtype_named
from tilewright.runtime.environment import usable_processors
from tilewright.runtime.outputs import check_output, is_standard_output, output
from tilewright.targets.target import CPU
from tilewright.tune.machine import machine
from tilewright.tune.measure import Effort
from tilewright.tune.profiling import Profile, Row
from tilewright.tune.profiling import profile as profiled
from tilewright.tune.roofline import Roofs, draw_roofline, roofs

EXAMPLE = "tilewright profile gemm 512 512 512"
WIDE = 160
"""Columns of a table that is not written to a terminal."""


@reports
def profile(
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="gemm: C = A @ B.")],
    extents: Annotated[
        list[str], typer.Argument(metavar="M N K | MxNxK", help="Extents of A (M, K) and B (K, N).")
    ],
    dtype: Element = "f32",
    layout: OperandLayout = "nn",
    precision: ExactOrTf32 = "exact",
    target: TargetName = CPU.name,
    seconds: Annotated[
        float, typer.Option(min=0.0, help="For how long each candidate is timed, in turns with all others.")
    ] = 0.2,
    most: MostCandidates = None,
    processes: Processes = None,
    json_: Annotated[
        Path | None, typer.Option("--json", help="Write all of it to this file; may be /dev/stdout.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw the roofline: .png, .svg or .pdf.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """List every schedule that the rules propose for a product: its time, or why it is refused.

    Each is compared with a float64 reference first, on an output that was poisoned. Those that are right are
    timed in turns with each other and with NumPy (cuda: PyTorch), on arrays that no cache holds.

    Exit status: 0, 1 when a candidate computes something wrong, 2 when the request cannot be served.
    """
    found = products(
        operation, extents, dtype=dtype, layout=layout, precision=precision, target=target, example=EXAMPLE
    )
    if len(found) != 1:
        raise UsageError(f"{len(found)} products; profile takes one, tilewright tune takes several")
    for path in filter(None, (json_, plot)):
        check_output(path)
    bar, (gemm,) = Bar(), found
    with _elsewhere(json_), read_clocks(target) as readings:
        with bar.drawn():
            made = profiled(
                gemm,
                effort=Effort(seconds=seconds, warm_up_seconds=seconds / 5, least=3),
                processes=processes or usable_processors(),
                most=most,
                seed=seed,
                progress=bar,
                readings=readings,
            )
        about = machine(target)
        roof = roofs(about, gemm.question().arch, dtype_named(gemm.dtype), gemm.precision)
        _show(made, roof)
    if json_ is not None:
        record: dict[str, Any] = {"benchmark": "profile", "machine": about.record(), "roofs": roof.record()}
        with output(json_) as file:
            file.write(f"{json.dumps(record | made.record(), indent=1)}\n".encode())
    if plot is not None:
        _draw(made, roof, plot)
    if any(row.against.startswith("wrong") for row in made.rows):
        raise typer.Exit(1)


@contextlib.contextmanager
def _elsewhere(json_: Path | None) -> Iterator[None]:
    """Write for people to the standard error, where the record goes to the standard output."""
    if json_ is not None and is_standard_output(json_):
        with contextlib.redirect_stdout(sys.stderr):
            yield
    else:
        yield


def _show(made: Profile, roof: Roofs) -> None:
    """The table, then the best, the untuned choice, and what would be taken now."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=sys.stdout, markup=False, highlight=False)
    if not console.is_terminal:
        console = Console(file=sys.stdout, markup=False, highlight=False, width=WIDE)
    table = Table(
        "", "ms [95 %]", "TFlops", "GB/s", "model", "K parts", "rule", "schedule, or why it was not measured"
    )
    ranked = made.measured
    for row in (*ranked, *(row for row in made.rows if row.against)):
        table.add_row(*_cells(made, row))
    for name in made.rivals:
        table.add_row(name, *_rates(made, name), "", "", "", "")
    console.print(table)
    say("problem", f"{made.gemm}; {made.gemm.flops:.4g} operations, {made.gemm.bytes:.4g} bytes at least")
    intensity = made.gemm.flops / made.gemm.bytes
    say(
        "roof",
        f"{roof.at(intensity) / 1e12:.4g} TFlops at {intensity:.4g} operations per byte; {roof.source}",
    )
    say("numbers", f"{made.result.subject.distribution}; {_cold(made)}")
    if made.result.clock:
        say("clock", ", ".join(f"{value:.4g} {name}" for name, value in made.result.clock.items()))
    say("", f"medians [95 % interval] in turns; {made.result.taken.how}")
    if not ranked:
        return
    best, untuned = ranked[0], made.rows[0]
    say("best", f"{best.name}: {best.candidate.schedule}")
    if not untuned.against:
        speed = made.result.taken.speed(untuned.name, best.name) if untuned != best else 1
        place = f"{ranked.index(untuned) + 1} of {len(ranked)}, {speed} times as fast as the best"
        say("untuned", f"{place}; by the rule: {untuned.candidate.rule}")
    now = made.gemm.bound().schedule_for(*made.gemm.specimens, target=made.gemm.target)
    if now != untuned.candidate.schedule:
        say("now", f"a table has another schedule taken: {now}")


def _cells(made: Profile, row: Row) -> list[str]:
    schedule = repr(row.candidate.schedule).removeprefix("tw.Schedule")
    rates = ["", "", ""] if row.against else _rates(made, row.name)
    why = row.against.partition("\n")[0] if row.against else schedule
    return [row.name, *rates, f"{made.relative(row):.2f}", row.splits, row.candidate.rule, why]


def _rates(made: Profile, name: str) -> list[str]:
    us = made.result.taken[name].us
    ms = f"{us.median / 1e3:.4g} [{us.low / 1e3:.4g}, {us.high / 1e3:.4g}]"
    return [ms, f"{made.result.tflops(name):.4g}", f"{made.result.gbytes(name):.4g}"]


def _cold(made: Profile) -> str:
    sets, each, cache = made.result.buffers.values()
    return f"{sets} sets of arrays of {each} bytes in turn, beside a second-level cache of {cache}"


def _draw(made: Profile, roof: Roofs, path: Path) -> None:
    tflops = {timing.name: made.result.tflops(timing.name) for timing in made.result.taken.timings}
    best = made.measured[0].name if made.measured else ""
    fastest = duration(made.result.taken[best].us.median / 1e6) if best else "nothing measured"
    title = f"{made.gemm}: {fastest}"
    draw_roofline(path, roof, made.gemm.flops / made.gemm.bytes, tflops, title, best)
    say("plot", str(path))
