"""`tilewright scaled`: multiply operands of different widths, with scales, verify every element, time it."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tilewright.cli.console import UsageError, choose, reports, say, working
from tilewright.cli.matrices import LAYOUTS, check_memory, extents_of
from tilewright.cli.notation import read_schedule
from tilewright.cli.options import Activation, EveryElement, ScheduleText, Seed, TargetName, choose_activation
from tilewright.cli.perf import first_call, timed
from tilewright.dtypes import PACKED, DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError
from tilewright.layout.limits import divisor_at_most
from tilewright.ops.products import BLOCK
from tilewright.ops.scales import OPERANDS
from tilewright.targets.target import CPU, TARGETS
from tilewright.tune.scaled_trial import OUR_PASSES, ScaledOperands, ScaledTrial

ROWS = 16
"""Of A where no extents are given: what few rows by many columns take is the bytes of the weights."""


@reports
def scaled(
    extents: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[M N K | MxNxK]",
            help="Extents of A (M, K) and B (K, N). Default: 16 1024 1024 (cuda: 16 4096 4096).",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help=f"Of A: {', '.join(map(str, OPERANDS))}.")] = "f16",
    weights: Annotated[str, typer.Option(help="Dtype of B, one of these, i4 or f4e2m1.")] = "f8e4m3",
    group: Annotated[
        int, typer.Option(min=0, help="Neighbours along K that have a scale of B in common; 0: all.")
    ] = 0,
    zeros: Annotated[bool, typer.Option(help="Zero points for the groups of B.")] = False,
    out_dtype: Annotated[
        str | None,
        typer.Option(help="Of the result, which saturates if it has 8 bits.", show_default=False),
    ] = None,
    layout: Annotated[str, typer.Option(help="How A and B lie in memory, as of gemm.")] = "nt",
    blocks: Annotated[
        str | None,
        typer.Option(
            metavar="ROWSxCOLUMNS",
            help="Scales of 128 along K for so many rows of A and columns of B: 1 or 128 each, as 1x128.",
            show_default=False,
        ),
    ] = None,
    bias: Annotated[bool, typer.Option(help="Add a number to each column.")] = True,
    activation: Activation = None,
    target: TargetName = CPU.name,
    verify: EveryElement = True,
    time: Annotated[bool, typer.Option(help="Time it beside the passes that it replaces.")] = True,
    schedule: ScheduleText = None,
    seed: Seed = 0,
) -> None:
    """Multiply operands of different widths, scale rows and columns, verify every element, and time it.

    D = activation(scale_a * (A @ B) * scale_b + bias), in one kernel.  Beside it stands the flow that it
    replaces: kernels that convert operands, multiply, and scale and add the bias, with their launches and the
    bytes that they move.  Ends with one line `Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>`, where the bytes
    are those of every array once.

    Exit status: 0 when the result is right, 1 when it is wrong, 2 when the request cannot be served.
    """
    choose("target", target, tuple(TARGETS))
    choose("layout", layout, LAYOUTS)
    choose_activation(activation)
    kinds = _dtype("dtype", dtype), _dtype("weights", weights, PACKED)
    out = None if out_dtype is None else _dtype("out-dtype", out_dtype)
    shape = extents_of(extents, "scaled") if extents else (ROWS, *TARGETS[target].shape[1:])
    check_memory(shape, kinds[0])
    _check_groups(shape, group, zeros=zeros)
    if group and blocks is not None:
        raise UsageError(f"--group {group} and --blocks {blocks}: scales of B belong to one or the other")
    with working("making the matrices"):
        shared = None if blocks is None else _blocks(blocks)
        words: dict[str, Any] = {"blocks": shared, "group": group or None, "zeros": zeros}
        made = ScaledOperands.drawn(shape, kinds, bias=bias, layout=layout, seed=seed, **words)
        trial = ScaledTrial(made, target, out, activation, read_schedule(schedule))
    said = "x".join(map(str, shape))
    say("operands", f"{said}: A of {kinds[0]}, B of {kinds[1]}, multiplied as {trial.multiplied}")
    if trial.widens:
        say("", "B is widened in memory first, by a pass of its own")
    else:
        say("", f"schedule: {trial.scheduled()}")
    for name, count in trial.launches.items():
        many = "launches" if count > 1 else "launch"
        say("", f"{name}: {count} {many}, {trial.moved[name] / 1e6:.4g} MB moved")
    first_call(trial)
    if verify:
        with working("verifying"):
            found = trial.verify()
            own = None if trial.own_passes is None else trial.own_passes.verified()
        found.raise_if_wrong()
        say("verify", str(found))
        if own is not None:
            own.raise_if_wrong()
            say("", f"{OUR_PASSES}: {own}")
    if time:
        timed(trial)


def _blocks(given: str) -> tuple[int, int]:
    """How many rows, and columns, have a scale in common."""
    rows, _, columns = given.partition("x")
    if {rows, columns} <= {"1", str(BLOCK)}:
        return int(rows), int(columns)
    raise UsageError(f"--blocks {given}; choose one of 1x{BLOCK}, {BLOCK}x{BLOCK}, 1x1 and {BLOCK}x1")


def _check_groups(shape: tuple[int, int, int], group: int, *, zeros: bool) -> None:
    """Refuse groups that are not whole, and zero points without groups."""
    depth = shape[2]
    if group and depth % group:
        nearest = divisor_at_most(depth, group)
        raise UsageError(f"--group {group} does not divide K, {depth}; nearest: {nearest}")
    if zeros and not group:
        raise UsageError(f"--zeros belongs to groups along K; nearest: --group {depth}")


def _dtype(option: str, name: str, further: tuple[DType, ...] = ()) -> DType:
    """The dtype of a name, as a user may spell it."""
    try:
        found = dtype_named(name)
    except DTypeError as error:
        raise UsageError(f"--{option}: {error}") from None
    known = (*OPERANDS, *further)
    if found not in known:
        raise UsageError(f"--{option} {found}; choose one of {', '.join(map(str, known))}")
    return found
