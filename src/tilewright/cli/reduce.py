"""`tilewright reduce`: rows or columns of a product, reduced in one kernel, verified, and timed."""

from __future__ import annotations

import functools
import time as clock
from typing import Annotated

import numpy as np
import typer

from tilewright.checking.references import ACTIVATIONS as MEANINGS
from tilewright.checking.references import reductions
from tilewright.cli.console import UsageError, choose, duration, reports, say, working
from tilewright.cli.options import Activation, Seed, TargetName, choose_activation
from tilewright.cli.perf import by, perf
from tilewright.dtypes import dtype as dtype_named
from tilewright.dtypes import f32
from tilewright.errors import WrongResultError
from tilewright.ops.reduced_matmul import REDUCTIONS, reduced_matmul
from tilewright.runtime.device_array import device_get, device_put
from tilewright.targets.target import CPU, CUDA, REFERENCE, TARGETS
from tilewright.tune.op_rivals import reduce_rivals

SIZES = {
    REFERENCE.name: [100, 300, 64],
    CPU.name: [512, 4096, 256],
    CUDA.name: [4096, 32768, 1024],
}
"""Extents by target, if none are given; those of a GPU for the others."""

DTYPES = ("f16", "bf16", "f32")
"""Those whose results float64 tells right from wrong."""

AXES = {"rows": -1, "columns": -2}


@reports
def reduce(
    extents: Annotated[
        list[int] | None,
        typer.Argument(
            min=1,
            metavar="[M N K]",
            help="A is M x K and B is K x N. Default: 512 4096 256 "
            "(cuda: 4096 32768 1024, reference: 100 300 64).",
            show_default=False,
        ),
    ] = None,
    of: Annotated[str, typer.Option(help=f"Some of {', '.join(REDUCTIONS)}, with commas.")] = "max,logsumexp",
    axis: Annotated[str, typer.Option(help="What becomes one number each: rows or columns.")] = "rows",
    dtype: Annotated[str, typer.Option(help=f"Element type: {', '.join(DTYPES)}.")] = "f16",
    activation: Activation = None,
    target: TargetName = CPU.name,
    time: Annotated[bool, typer.Option(help="Time it beside NumPy (cuda: PyTorch).")] = True,
    seed: Seed = 0,
) -> None:
    """Reduce the rows or columns of activation(A B) of random matrices, verify every number, and time it.

    The product is never stored. Says each step, and ends with one line `Perf: <ms> ms, <x> TFlops, <y> GB/s,
    <name>`, where the bytes are those of A, B and the results once each.

    Exit status: 0 when the result is right, 1 when it is wrong, 2 when the request cannot be served.
    """
    choose("target", target, tuple(TARGETS))
    choose("dtype", dtype, DTYPES)
    choose("axis", axis, tuple(AXES))
    names = tuple(name.strip() for name in of.split(","))
    for name in names:
        choose("reduction (--of)", name, REDUCTIONS)
    choose_activation(activation)
    usual = SIZES.get(target, SIZES[CUDA.name])
    sizes = extents or usual
    if len(sizes) != 3:
        raise UsageError(f"{len(sizes)} extents; nearest legal choice: three, as {usual}")
    m, n, k = sizes
    with working("making the matrices"):
        rng, element = np.random.default_rng(seed), dtype_named(dtype)
        a, b = (rng.standard_normal(shape).astype(element.numpy) for shape in ((m, k), (k, n)))
        blank = np.full(m if axis == "rows" else n, np.nan, np.float32)
        a_there, b_there = (device_put(x, target) for x in (a, b))
        outs = tuple(device_put(blank.copy(), target) for _ in names)
    say("operands", f"A {by((m, k))}, B {by((k, n))}, {dtype}: random numbers")
    given = a_there, b_there, names, AXES[axis], outs
    call = functools.partial(reduced_matmul, *given, activation=activation, target=target)
    with working("running"):
        begun = clock.perf_counter()
        call()
        found = [device_get(out) for out in outs]
    say("run", f"on {target}: {duration(clock.perf_counter() - begun)} for the first call")
    with working("verifying"):
        wide, meant = [x.astype(np.float64) for x in (a, b)], MEANINGS[activation]
        sums, sizes_of_sums = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
        elements, unit = meant.meaning(sums), f32.unit_roundoff
        near = meant.steepest * 4 * (k + 8) * unit * sizes_of_sums
        near += meant.error * np.maximum(np.abs(elements), np.abs(sums))
        exact = reductions(elements, near, AXES[axis], unit)
        of_all = [(exact[name], one) for name, one in zip(names, found, strict=True)]
        off = [np.abs(one - right.wanted) / right.room for right, one in of_all]
        worst = float(np.nan_to_num(off, nan=np.inf).max())
    if worst > 1:
        raise WrongResultError(f"a number is off by {worst:.3g} of its bound")
    checked = f"all {blank.size} numbers of {', '.join(names)} agree with float64"
    say("verify", f"{checked}; the worst has {worst:.3g} of its bound")
    if time:
        name = f"reduce<{target}, {activation + ' ' if activation else ''}{dtype} {by(sizes)} {axis} {of}>"
        moved, asked = sum(array.nbytes for array in (a, b, *found)), (names, AXES[axis])
        rivals = functools.partial(reduce_rivals, (a_there, b_there), (a, b), target, activation, asked)
        perf(call, target, 2 * m * n * k, moved, name, rivals)
