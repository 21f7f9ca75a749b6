"""`tilewright einsum`: contract two arrays, verify every element, time it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from tilewright.cli.console import UsageError, choose, choose_precision, reports, say, working
from tilewright.cli.matrices import chosen_dtype
from tilewright.cli.notation import read_schedule
from tilewright.cli.options import Activation, EveryElement, ScheduleText, Seed, TargetName, choose_activation
from tilewright.cli.perf import first_call, timed, verified
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.ops.einsum import Dropout
from tilewright.ops.grades import HALVES_OF
from tilewright.targets.target import CPU, TARGETS
from tilewright.tune.einsum_trial import Contracted, EinsumTrial


@reports
def einsum(
    subscripts: Annotated[
        str, typer.Argument(help="Axes of A, of B and of the result, in quotes: 'bsk,khd->bhsd'.")
    ],
    a: Annotated[str, typer.Argument(metavar="A", help="Extents of A: 2x128x64.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Extents of B: 64x4x32.")],
    dtype: Annotated[str, typer.Option(help="Of A and of B.")] = "f32",
    bias: Annotated[bool, typer.Option(help="Add a number for each index that only B has.")] = True,
    activation: Activation = None,
    dropout: Annotated[float, typer.Option(help="With which probability an element is set to 0.")] = 0.0,
    precision: Annotated[str, typer.Option(help="How f32 is multiplied: exact, f32, tf32 or f16.")] = EXACT,
    target: TargetName = CPU.name,
    verify: EveryElement = True,
    time: Annotated[bool, typer.Option(help="Time it beside NumPy's or PyTorch's.")] = True,
    schedule: ScheduleText = None,
    seed: Seed = 0,
) -> None:
    """Contract two arrays in one kernel, verify every element, and time it.

    D = dropout(activation(contraction of A and B + bias)), with the axes of D in any order.  Ends with one
    line `Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>`, where the bytes are those of every array once.

    Exit status: 0 when the result is right, 1 when it is wrong, 2 when the request cannot be served.
    """
    choose("target", target, tuple(TARGETS))
    choose_activation(activation)
    choose_precision(precision, (EXACT, TF32, *HALVES_OF), dtype)
    kind, shapes = chosen_dtype(dtype), (_extents("A", a), _extents("B", b))
    with working("making the arrays"):
        given = Contracted.drawn(subscripts, shapes, kind, bias=bias, seed=seed)
        how, dropped = read_schedule(schedule), Dropout(dropout, seed)
        trial = EinsumTrial(given, target, activation, how, dropped=dropped, precision=precision)
    seen = trial.contraction
    views = [name for name, one in seen.seen if any(inner for _, inner in one.groups)]
    say("result", "x".join(map(str, given.arrays["out"].shape)) or "one number")
    say("", f"{_counted(seen.batch)}, {_seen_through(views)}")
    if trial.halves:
        of_halves = "one product" if trial.halves == 1 else "three products"
        say("", f"a launch splits A and B in halves of f16; the next one sums {of_halves} of these")
    say("", f"schedule: {trial.scheduled()}")
    first_call(trial)
    if verify:
        verified(trial.verify)
    if time:
        timed(trial)


def _counted(batch: int) -> str:
    """How many dimensions of the result have a product of matrices for each index."""
    if not batch:
        return "one product of matrices"
    return f"a product of matrices for each index of {batch} {'dimension' if batch == 1 else 'dimensions'}"


def _seen_through(views: Sequence[str]) -> str:
    """Which arrays have axes that are merged although they have several strides."""
    if not views:
        return "all arrays as they lie"
    return f"{' and '.join(views)} seen through a view"


def _extents(name: str, text: str) -> tuple[int, ...]:
    try:
        found = tuple(int(extent) for extent in text.lower().split("x"))
    except ValueError:
        found = (-1,)
    if min(found) < 0:
        raise UsageError(
            f"extents of {name} are {text!r}; nearest: integers with x between them, as 2x128x64"
        )
    return found
