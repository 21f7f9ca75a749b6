"""`tilewright chain`: two products, one behind the other, verified element by element, and timed."""

from __future__ import annotations

import functools
import time as clock
from typing import Annotated

import numpy as np
import typer

from tilewright.checking.references import chained
from tilewright.cli.console import UsageError, choose, duration, reports, say, working
from tilewright.cli.options import Activation, Seed, TargetName, choose_activation
from tilewright.cli.perf import by, perf
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import WrongResultError
from tilewright.ops.gemm_chain import FUSED, gemm_chain
from tilewright.runtime.device_array import device_get, device_put
from tilewright.targets.target import CPU, CUDA, REFERENCE, TARGETS
from tilewright.tune.op_rivals import chain_rivals

SIZES = {
    REFERENCE.name: [100, 64, 100, 64],
    CPU.name: [4096, 64, 512, 64],
    CUDA.name: [65536, 128, 512, 128],
}
"""Extents by target, if none are given; those of a GPU for the others."""


@reports
def chain(
    extents: Annotated[
        list[int] | None,
        typer.Argument(
            min=1,
            metavar="[M K N P]",
            help="A is M x K, B is K x N and C is N x P. Default: 4096 64 512 64 "
            "(cuda: 65536 128 512 128, reference: 100 64 100 64).",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Element type: f16, bf16 or f32.")] = "f16",
    activation: Activation = None,
    fused: Annotated[
        bool | None,
        typer.Option("--fused/--two", help="One kernel, or two that store A B. Default: as tw.gemm_chain."),
    ] = None,
    target: TargetName = CPU.name,
    time: Annotated[bool, typer.Option(help="Time it beside NumPy (cuda: PyTorch).")] = True,
    seed: Seed = 0,
) -> None:
    """Compute activation(A B) C of random matrices, verify every element, and time it.

    Says each step, and ends with one line `Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>`, where the bytes are
    those of A, B, C and the result once each.

    Exit status: 0 when the result is right, 1 when it is wrong, 2 when the request cannot be served.
    """
    choose("target", target, tuple(TARGETS))
    choose("dtype", dtype, tuple(map(str, FUSED)))
    choose_activation(activation)
    usual = SIZES.get(target, SIZES[CUDA.name])
    sizes = extents or usual
    if len(sizes) != 4:
        raise UsageError(f"{len(sizes)} extents; nearest legal choice: four, as {usual}")
    m, k, n, p = sizes
    with working("making the matrices"):
        rng, element = np.random.default_rng(seed), dtype_named(dtype).numpy
        a, b, c = (rng.standard_normal(shape).astype(element) for shape in ((m, k), (k, n), (n, p)))
        arrays = [device_put(x, target) for x in (a, b, c, np.full((m, p), np.nan, element))]
    say("operands", f"A {by((m, k))}, B {by((k, n))}, C {by((n, p))}, {dtype}: random numbers")
    call = functools.partial(
        gemm_chain, *arrays[:3], out=arrays[3], activation=activation, fused=fused, target=target
    )
    with working("running"):
        begun = clock.perf_counter()
        call()
        found = device_get(arrays[3])
    say("run", f"on {target}: {duration(clock.perf_counter() - begun)} for the first call")
    with working("verifying"):
        exact = chained(a, b, c, activation)
        off = np.abs(found.astype(np.float64) - exact.wanted) / exact.room
        worst = float(np.nan_to_num(off, nan=np.inf).max())
    if worst > 1:
        raise WrongResultError(f"an element is off by {worst:.3g} of its bound")
    say("verify", f"all {found.size} elements agree with float64; the worst has {worst:.3g} of its bound")
    if time:
        name = f"chain<{target}, {activation + ' ' if activation else ''}{dtype} {by(sizes)}>"
        moved = sum(array.nbytes for array in (a, b, c, found))
        rivals = functools.partial(chain_rivals, arrays[:3], (a, b, c), target, activation)
        perf(call, target, 2 * m * n * (k + p), moved, name, rivals)
