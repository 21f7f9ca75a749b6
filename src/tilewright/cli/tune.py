"""`tilewright tune`: measure the candidates of products, and keep the fastest in a table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.cli.console import UsageError, duration, reports, say
from tilewright.cli.measuring import Bar, products
from tilewright.cli.options import Element, ExactOrTf32, MostCandidates, OperandLayout, Processes, Seed
from tilewright.runtime.cache import Cache
from tilewright.runtime.environment import CACHE_DIR, usable_processors
from tilewright.runtime.tables import user_table, version_of
from tilewright.targets.target import CPU
from tilewright.tune.gemm import Gemm
from tilewright.tune.keeping import Kept
from tilewright.tune.measure import Effort
from tilewright.tune.tuner import Tuned, Tuner

EXAMPLE = "tilewright tune gemm 512 512 512 64 64 4096"


@reports
def tune(
    operation: Annotated[str, typer.Argument(metavar="OPERATION", help="gemm: C = A @ B.")],
    given: Annotated[
        list[str],
        typer.Argument(
            metavar="M N K … | MxNxK … | FILE.json …",
            help="Extents of products, three each, or files: lists of [M, N, K], or of objects with shape, "
            "dtype, layout, precision.",
        ),
    ],
    dtype: Element = "f32",
    layout: OperandLayout = "nn",
    precision: ExactOrTf32 = "exact",
    target: Annotated[str, typer.Option(help="Which target runs it: cpu or cuda.")] = CPU.name,
    seconds: Annotated[
        float,
        typer.Option(min=0.0, help="For how long each candidate is timed, in turns with the untuned choice."),
    ] = 0.2,
    most: MostCandidates = None,
    processes: Processes = None,
    table: Annotated[
        Path | None,
        typer.Option(
            help="The table. Default: this machine's, in the cache's directory.", show_default=False
        ),
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="Set aside what was measured before, and begin anew.")
    ] = False,
    seed: Seed = 0,
) -> None:
    """Find the fastest schedule of each product, and have tw.matmul take it from now on.

    Every candidate is compared with a float64 reference on a poisoned output, and timed in turns with the
    untuned choice on arrays that no cache holds; what came of it is on disk before the next one begins, so
    that after a kill the same command goes on where it was. The fastest are timed once more together, and
    the winner is verified again on other numbers, every element.

    Exit status: 0, 1 when the untuned choice computes something wrong, 2 when the request cannot be served.
    """
    found = products(
        operation, given, dtype=dtype, layout=layout, precision=precision, target=target, example=EXAMPLE
    )
    question = found[0].question()
    version = version_of(question.arch, question.processors)
    if version is None:
        raise UsageError(
            f"no tables are kept of target {target}, which has no speed; nearest: --target {CPU.name}"
        )
    cache = Cache.default()
    if table is None and (reason := cache.distrust()) is not None:
        raise UsageError(
            f"{cache.root} is not used: {reason}; nearest: --table, or {CACHE_DIR}, in a directory that "
            "nobody else may write"
        )
    kept = Kept(table or user_table(version), version, renew=renew, say=lambda text: say("aside", text))
    effort, bar = Effort(seconds=seconds, warm_up_seconds=seconds / 5, least=5), Bar()
    for gemm in found:
        tuner = Tuner(gemm, kept.journal, effort, processes or usable_processors(), most, seed, bar)
        with bar.drawn():
            tuned = tuner.run()
        kept.add([tuned.entry])
        _tell(gemm, tuned)
    say("table", str(kept.path))


def _tell(gemm: Gemm, tuned: Tuned) -> None:
    """What came of one product."""
    entry = tuned.entry
    tflops = gemm.flops / entry.us / 1e6
    say("tuned", f"{gemm}: {duration(entry.us / 1e6)}, {tflops:.4g} TFlops, {entry.schedule}")
    say("", f"{tuned.speed} times as fast as the untuned choice; verified again on other numbers")
    say("", f"{tuned.measured} measured now, {tuned.known} known, {len(tuned.refused)} refused or wrong")
    for schedule, why in tuned.refused.items():
        if why.startswith(("wrong", "not compiled")):
            say("", f"{schedule}: {why.partition(chr(10))[0]}")
