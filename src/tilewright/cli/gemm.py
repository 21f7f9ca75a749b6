"""`tilewright gemm`: multiply two matrices, verify every element, and time it in turns with a library."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from tilewright.checking.sample import Array, Operands
from tilewright.cli.console import (
    Seed,
    TargetName,
    by,
    choose,
    choose_precision,
    duration,
    file_to_write,
    reports,
    say,
    tell,
    working,
)
from tilewright.cli.matrices import gather, write
from tilewright.cli.notation import read_schedule
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.dtypes import dtype as element
from tilewright.ops.wanted import HALVES_OF
from tilewright.runtime.outputs import check_output, is_standard_output
from tilewright.schedule.question import SUPPORTED
from tilewright.targets.target import CPU, TARGETS
from tilewright.tune.measure import QUICK
from tilewright.tune.trial import OURS, PlannedTrial, Trial


@reports
def gemm(
    operands: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[M N K | MxNxK | A.npy B.npy]",
            help="Extents of made-up matrices A (M, K) and B (K, N), or two files. "
            "Default: 1024 1024 1024 (cuda: 4096, reference: 64, each way).",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            parser=file_to_write,
            help="Write C (M, N) to this .npy file, once verified; with /dev/stdout the steps go to stderr.",
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            help=f"Element type: {', '.join(SUPPORTED)}; files are converted to it. "
            "Default: f32, or what the files hold.",
            show_default=False,
        ),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            help="How A and B lie in memory, a letter for each: n, row after row; t, transposed, column "
            "after column. nn, nt, tn or tt. Default: nn, or as the files say.",
            show_default=False,
        ),
    ] = None,
    target: TargetName = CPU.name,
    verify: Annotated[bool, typer.Option(help="Compare every element with a float64 reference.")] = True,
    init: Annotated[
        str, typer.Option(help="What fills made-up matrices: random, integers or elevation.")
    ] = "random",
    data: Annotated[
        str | None,
        typer.Option(help="Multiply measurements: elevation, profiles of a landscape with their transpose."),
    ] = None,
    time: Annotated[bool, typer.Option(help="Compare its time with NumPy's (cuda: PyTorch's).")] = True,
    precision: Annotated[str, typer.Option(help="How f32 is multiplied: exact, f32, tf32 or f16.")] = "exact",
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="EXPRESSION",
            help="How it is computed, as Python: tw.Schedule(...). Default: as tw.matmul would.",
            show_default=False,
        ),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Multiply two matrices, verify every element, and time it.

    Says each step, and ends with one line `Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>`, where a multiply-add
    is two operations and the bytes are those of A, B and C once each.

    Exit status: 0 when the result is right, 1 when it is wrong, 2 when the request cannot be served.
    """
    choose("target", target, tuple(TARGETS))
    choose("precision", precision, (EXACT, TF32, *HALVES_OF))
    chosen = read_schedule(schedule)
    if output is not None:
        check_output(output)
    with contextlib.ExitStack() as stack:
        if output is not None and is_standard_output(output):
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # a reader expects C alone
        with working("making the matrices"):
            made = gather(
                operands or [],
                target=target,
                dtype_name=dtype,
                layout=layout,
                init=init,
                data=data,
                seed=seed,
            )
            choose_precision(precision, (EXACT, TF32, *HALVES_OF), element(made.a.dtype).name)
            trial = PlannedTrial(made, target, precision, chosen)
        _execute(trial, made, verify)
        if output is not None:
            write(output, trial.result())
            say("output", f"{output}: C {by(trial.result().shape)} {trial.out_dtype}")
        if time:
            _time(trial)


def _execute(trial: Trial, made: Operands, verify: bool) -> None:
    """Trace, compile, run and verify; print a line for each step."""
    say("operands", f"A {_matrix(made.a)}, B {_matrix(made.b)}: {made.about}")
    with working("tracing"):
        kernel = trial.trace()
    say("trace", f"{trial.name}: {sum(1 for _ in kernel.walk())} operations")
    say("", f"schedule: {trial.schedule}")
    with working("compiling"):
        executable = trial.compile()
    tell(kernel=trial.name, schedule=repr(trial.schedule), target=executable.target, arch=executable.arch)
    tell(resources=dict(executable.resources), notes=list(executable.notes))
    say("legality", "no rule is broken")
    if executable.path is None:
        say("compile", "nothing to compile: the reference executes the operations themselves")
    else:
        how = "found in the cache in" if executable.cached else "compiled in"
        values = (f"{value} {name.replace('_', ' ')}" for name, value in executable.resources.items())
        cost = "; " * bool(executable.resources) + ", ".join(values)
        say("compile", f"{how} {duration(executable.seconds)} for {executable.arch}{cost}")
    for note in executable.notes:
        say("", note)
    with working("running"):
        executable, seconds = trial.run()
    say("run", f"on {executable.target} ({executable.arch}): {duration(seconds)} for the first call")
    if not verify:
        say("verify", "left out; the result may be wrong")
        return
    with working("verifying"):
        found = trial.verify()
    found.raise_if_wrong()
    tell(verified=True, largest_error=float(found.error), allowed=float(found.bound))
    m, n, _ = trial.operands.shape
    if trial.out_dtype.kind != "float":
        say("verify", f"all {m * n} elements equal the exact product")
        return
    say(
        "verify",
        f"all {m * n} elements agree with the product in float64; worst at {list(found.index)}: "
        f"off by {found.error:.3g} of {found.bound:.3g} allowed",
    )


def _time(trial: Trial) -> None:
    if not TARGETS[trial.target].machine_code:
        # It executes operation by operation to find hazards; its time says nothing about a machine.
        seconds = trial.run()[1]
        typer.echo(trial.perf(1e6 * seconds))
        return
    with working("timing"):
        taken = trial.time(QUICK)
    tell(times_us={one.name: one.us.median for one in taken.timings}, flops=trial.flops)
    for timing in taken.timings:
        us = timing.us
        median, low, high = (duration(value / 1e6) for value in (us.median, us.low, us.high))
        text = f"{timing.name}: {median} [{low}, {high}]"
        rate = f"{trial.flops / us.median / 1e3:.4g} GFlops"
        speed = "" if timing.name == OURS else f"; {OURS} is {taken.speed(OURS, timing.name)} times as fast"
        say("time", f"{text}, {rate}{speed}")
    say("", f"{len(taken.timings[0].samples_us)} rounds in turns, medians [95 % interval]; {taken.how}")
    typer.echo(trial.perf(taken[OURS].us.median))


def _matrix(array: Array) -> str:
    letter = "n" if array.flags.c_contiguous else "t"
    return f"{by(array.shape)} {element(array.dtype)} ({letter})"
