"""`tilewright einsum`, `complex` and `scaled`: each computes, verifies every element, and times."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tilewright.cli.console import (
    Activation,
    EveryElement,
    ScheduleText,
    Seed,
    TargetName,
    UsageError,
    choose,
    choose_activation,
    choose_precision,
    duration,
    first_call,
    reports,
    say,
    timed,
    verified,
    working,
)
from tilewright.cli.matrices import LAYOUTS, check_memory, chosen_dtype, extents_of
from tilewright.cli.notation import read_schedule
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.dtypes import PACKED, DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError
from tilewright.layout.limits import divisor_at_most
from tilewright.ops.complex_matmul import PRECISIONS, SUPPORTED, ComplexWanted
from tilewright.ops.complex_strategies import METHODS
from tilewright.ops.products import BLOCK
from tilewright.ops.scales import OPERANDS
from tilewright.ops.wanted import HALVES_OF, dropout_of
from tilewright.targets.target import CPU, TARGETS
from tilewright.tune.complex_trial import SIX, ComplexTrial
from tilewright.tune.einsum_trial import Contracted, EinsumTrial
from tilewright.tune.scaled_trial import OUR_PASSES, ScaledOperands, ScaledTrial
from tilewright.tune.trial import OURS


@reports
def einsum(
    subscripts: Annotated[
        str, typer.Argument(help="Axes of A, of B and of the result, in quotes: 'bsk,khd->bhsd'.")
    ],
    a: Annotated[str, typer.Argument(metavar="A", help="Extents of A: 2x128x64.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Extents of B: 64x4x32.")],
    dtype: Annotated[str, typer.Option(help="Element type of A and B.")] = "f32",
    bias: Annotated[bool, typer.Option(help="Add a number for each index that only B has.")] = True,
    activation: Activation = None,
    dropout: Annotated[float, typer.Option(help="Probability with which an element is set to 0.")] = 0.0,
    precision: Annotated[str, typer.Option(help="How f32 is multiplied: exact, f32, tf32 or f16.")] = EXACT,
    target: TargetName = CPU.name,
    verify: EveryElement = True,
    time: Annotated[bool, typer.Option(help="Compare its time with NumPy's or PyTorch's.")] = True,
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
        how, dropped = read_schedule(schedule), dropout_of("einsum", dropout, seed, 0)
        trial = EinsumTrial(given, target, activation, how, dropped=dropped, precision=precision)
    seen = trial.contraction
    views = [name for name, one in seen.seen if any(inner for _, inner in one.groups)]
    say("result", "x".join(map(str, given.arrays["out"].shape)) or "one number")
    products = "one product of matrices"
    if seen.batch:
        dimensions = "dimension" if seen.batch == 1 else "dimensions"
        products = f"a product of matrices for each index of {seen.batch} {dimensions}"
    lying = f"{' and '.join(views)} seen through a view" if views else "all arrays without a view"
    say("", f"{products}, {lying}")
    if trial.halves:
        of_halves = "one product" if trial.halves == 1 else "three products"
        say("", f"the first launch splits A and B in f16 halves; the second adds up {of_halves} of them")
    say("", f"schedule: {trial.scheduled()}")
    first_call(trial)
    if verify:
        verified(trial.verify)
    if time:
        timed(trial)


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


# ----------------------------------------------------------------
# `tilewright complex`, timed against six real launches.


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
    dtype: Annotated[str, typer.Option(help="Element type of a part: f64, f32, f16 or bf16.")] = "f32",
    planar: Annotated[
        bool, typer.Option(help="Real and imaginary parts are arrays of their own, as always of bf16.")
    ] = False,
    conjugate: Annotated[str, typer.Option(help="Operands to conjugate: none, a, b or ab.")] = "none",
    method: Annotated[str, typer.Option(help="4m, four real products, or 3m, three.")] = METHODS[0],
    precision: Annotated[str, typer.Option(help="How f32 is multiplied: exact, f32, tf32 or f16.")] = "exact",
    target: TargetName = CPU.name,
    verify: Annotated[bool, typer.Option(help="Compare the result under a bound for each element.")] = True,
    time: Annotated[
        bool, typer.Option(help="Compare its time with six launches and with NumPy (cuda: cuBLAS).")
    ] = True,
    schedule: ScheduleText = None,
    seed: Seed = 0,
) -> None:
    """Multiply complex matrices, print the launches, verify the result, and time it.

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
    say("plan", str(trial.plan.details))
    for name in (OURS, SIX):
        say("", f"{name}: {trial.launches[name]} launches, {trial.moved[name] / 1e6:.4g} MB moved")
    with working("running"):
        seconds = trial.run()
    last = trial.ran[-1]
    say("run", f"on {last.target} ({last.arch}): {duration(seconds)} for the first call")
    for executable in trial.ran:
        say("", f"{executable.kernel.name}: {executable.schedule or 'explicit'}")
    if verify:
        verified(trial.verify)
    if time:
        timed(trial)
    else:
        typer.echo(trial.perf(1e6 * trial.run()))


# ---------------------------------------------------------------- `tilewright scaled`


ROWS = 16
"""Default rows of A. With few rows the time is that of reading the weights."""


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
    dtype: Annotated[str, typer.Option(help=f"Element type of A: {', '.join(map(str, OPERANDS))}.")] = "f16",
    weights: Annotated[str, typer.Option(help="Dtype of B, one of these, i4 or f4e2m1.")] = "f8e4m3",
    group: Annotated[
        int, typer.Option(min=0, help="Neighbours along K that share a scale of B; 0: all.")
    ] = 0,
    zeros: Annotated[bool, typer.Option(help="Zero points for the groups of B.")] = False,
    out_dtype: Annotated[
        str | None, typer.Option(help="Element type of the result; 8 bits saturate.", show_default=False)
    ] = None,
    layout: Annotated[str, typer.Option(help="How A and B lie in memory, as in gemm.")] = "nt",
    blocks: Annotated[
        str | None,
        typer.Option(
            metavar="ROWSxCOLUMNS",
            help="Scales of blocks: 128 along K by this number of rows of A and columns of B, 1 or 128 "
            "each, as 1x128.",
            show_default=False,
        ),
    ] = None,
    bias: Annotated[bool, typer.Option(help="Add a number to each column.")] = True,
    activation: Activation = None,
    target: TargetName = CPU.name,
    verify: EveryElement = True,
    time: Annotated[bool, typer.Option(help="Compare its time with the passes that it replaces.")] = True,
    schedule: ScheduleText = None,
    seed: Seed = 0,
) -> None:
    """Multiply operands of different widths, scale rows and columns, verify every element, and time it.

    D = activation(scale_a * (A @ B) * scale_b + bias), in one kernel.  The steps show the launches and bytes
    of this kernel, and of the kernels that it replaces: those convert operands, multiply, and scale and add
    the bias.  Ends with one line `Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>`, where the bytes are those of
    every array once.

    Exit status: 0 when the result is right, 1 when it is wrong, 2 when the request cannot be served.
    """
    choose("target", target, tuple(TARGETS))
    choose("layout", layout, LAYOUTS)
    choose_activation(activation)
    kinds = _dtype("dtype", dtype), _dtype("weights", weights, PACKED)
    out = None if out_dtype is None else _dtype("out-dtype", out_dtype)
    shape = extents_of(extents, "scaled") if extents else (ROWS, *TARGETS[target].shape[1:])
    check_memory(shape, kinds[0])
    depth = shape[2]
    if group and depth % group:
        nearest = divisor_at_most(depth, group)
        raise UsageError(f"--group {group} does not divide K, {depth}; nearest: {nearest}")
    if zeros and not group:
        raise UsageError(f"--zeros belongs to groups along K; nearest: --group {depth}")
    if group and blocks is not None:
        raise UsageError(f"--group {group} and --blocks {blocks}: scales of B belong to one or the other")
    shared = None
    if blocks is not None:
        rows, _, columns = blocks.partition("x")
        if not {rows, columns} <= {"1", str(BLOCK)}:
            known = f"1x{BLOCK}, {BLOCK}x{BLOCK}, 1x1 and {BLOCK}x1"
            raise UsageError(f"--blocks {blocks}; choose one of {known}")
        shared = int(rows), int(columns)
    with working("making the matrices"):
        words: dict[str, Any] = {"blocks": shared, "group": group or None, "zeros": zeros}
        made = ScaledOperands.drawn(shape, kinds, bias=bias, layout=layout, seed=seed, **words)
        trial = ScaledTrial(made, target, out, activation, read_schedule(schedule))
    said = "x".join(map(str, shape))
    say("operands", f"{said}: A of {kinds[0]}, B of {kinds[1]}, multiplied as {trial.multiplied}")
    if len(trial.plan.launches) > 1:
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


def _dtype(option: str, name: str, further: tuple[DType, ...] = ()) -> DType:
    """Return the dtype that an option names."""
    try:
        found = dtype_named(name)
    except DTypeError as error:
        raise UsageError(f"--{option}: {error}") from None
    known = (*OPERANDS, *further)
    if found not in known:
        raise UsageError(f"--{option} {found}; choose one of {', '.join(map(str, known))}")
    return found
