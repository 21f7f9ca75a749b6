"""`tilewright complex`: multiply complex matrices, say how, verify, and time beside the six launches."""

from __future__ import annotations

from typing import Annotated

import typer

from tilewright.cli.console import choose, choose_precision, duration, reports, say, working
from tilewright.cli.matrices import check_memory, extents_of
from tilewright.cli.notation import read_schedule
from tilewright.cli.options import ScheduleText, Seed, TargetName
from tilewright.cli.perf import told, verified
from tilewright.dtypes import dtype as dtype_named
from tilewright.ops.complex_planning import PRECISIONS, SUPPORTED, ComplexWanted
from tilewright.ops.complex_ways import METHODS
from tilewright.targets.target import CPU, TARGETS
from tilewright.tune.complex_trial import SIX, ComplexTrial, scheduled
from tilewright.tune.measure import QUICK
from tilewright.tune.trial import OURS

CONJUGATES = ("none", "a", "b", "ab")


@reports
def complex_numbers(
    extents: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[M N K | MxNxK]",
            help="Extents of A (M, K) and B (K, N). Default: 1024 1024 1024 (cuda: 4096, reference: 64).",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Of real and imaginary parts: f64, f32, f16 or bf16.")] = "f32",
    planar: Annotated[
        bool, typer.Option(help="Real and imaginary parts are arrays of their own, as always of bf16.")
    ] = False,
    conjugate: Annotated[str, typer.Option(help="What is conjugated: none, a, b or ab.")] = "none",
    method: Annotated[str, typer.Option(help="4m, four real products, or 3m, three.")] = METHODS[0],
    precision: Annotated[str, typer.Option(help="How f32 is multiplied: exact, f32, tf32 or f16.")] = "exact",
    target: TargetName = CPU.name,
    verify: Annotated[bool, typer.Option(help="Compare the result under a bound for each element.")] = True,
    time: Annotated[bool, typer.Option(help="Time it beside six launches and NumPy (cuda: cuBLAS).")] = True,
    schedule: ScheduleText = None,
    seed: Seed = 0,
) -> None:
    """Multiply complex matrices, say what is launched, verify the result, and time it.

    Ends with one line `Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>`, of 8 operations for each m, n, k.

    Exit status: 0 when the result is right, 1 when it is wrong, 2 when the request cannot be served.
    """
    choose("target", target, tuple(TARGETS))
    choose("dtype", dtype, SUPPORTED)
    choose("conjugate", conjugate, CONJUGATES)
    choose("method", method, METHODS)
    choose_precision(precision, PRECISIONS, dtype)
    shape = extents_of(extents, "complex") if extents else TARGETS[target].shape
    check_memory(shape, dtype_named("f64"))
    asked = ComplexWanted(
        conjugate_a="a" in conjugate,
        conjugate_b="b" in conjugate,
        method=method,
        precision=precision,
        how=read_schedule(schedule),
    )
    with working("making the matrices"):
        trial = ComplexTrial(shape, dtype_named(dtype), target, planar, asked, seed)
    say("plan", str(trial.product.way))
    for name in (OURS, SIX):
        say("", f"{name}: {trial.launches[name]} launches, {trial.bytes[name] / 1e6:.4g} MB moved")
    with working("running"):
        ran, seconds = trial.run()
    say("run", f"on {ran[-1].target} ({ran[-1].arch}): {duration(seconds)} for the first call")
    for executable in ran:
        say("", f"{executable.kernel.name}: {scheduled(executable.schedule)}")
    if verify:
        verified(trial.verify)
    if not time or not TARGETS[target].machine_code:
        typer.echo(trial.perf(1e6 * trial.run()[1]))
        return
    with working("timing"):
        taken = trial.time(QUICK)
    typer.echo(trial.perf(told(taken)))
