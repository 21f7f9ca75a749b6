"""`tilewright attention`, `chain`, `reduce`: each runs one fused kernel, verifies each element, and times."""

from __future__ import annotations

import functools
import math
import time as clock
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated, Any

import numpy as np
import typer

from tilewright.checking.compare import Array
from tilewright.checking.references import ACTIVATIONS as MEANINGS
from tilewright.checking.references import attention_room, chained, reductions, softmax_attention
from tilewright.cli.console import (
    Activation,
    Seed,
    TargetName,
    UsageError,
    by,
    choose,
    choose_activation,
    duration,
    perf,
    reports,
    say,
    working,
)
from tilewright.dtypes import dtype as dtype_named
from tilewright.dtypes import f32
from tilewright.errors import WrongResultError
from tilewright.ops.attending.problem import SUPPORTED
from tilewright.ops.attention import attention as attend
from tilewright.ops.gemm_chain import FUSED, gemm_chain
from tilewright.ops.reduced_matmul import REDUCTIONS, reduced_matmul
from tilewright.runtime.gpu_memory import device_get, device_put
from tilewright.targets.target import CPU, CUDA, REFERENCE, TARGETS
from tilewright.tune.rivals import attention_rivals, chain_rivals, reduce_rivals

SIZES = {
    "attention": {
        REFERENCE.name: [1, 2, 100, 100, 64],
        CPU.name: [1, 8, 512, 512, 64],
        CUDA.name: [1, 8, 4096, 4096, 128],
    },
    "chain": {
        REFERENCE.name: [100, 64, 100, 64],
        CPU.name: [4096, 64, 512, 64],
        CUDA.name: [65536, 128, 512, 128],
    },
    "reduce": {
        REFERENCE.name: [100, 300, 64],
        CPU.name: [512, 4096, 256],
        CUDA.name: [4096, 32768, 1024],
    },
}
"""Default extents by verb and target. Every other GPU takes those of CUDA."""


def _sizes(verb: str, extents: list[int] | None, target: str) -> list[int]:
    """Return the extents of a verb, or its default extents if none are given."""
    usual = SIZES[verb].get(target, SIZES[verb][CUDA.name])
    if extents and len(extents) != len(usual):
        count = {3: "three", 4: "four", 5: "five"}[len(usual)]
        raise UsageError(f"{len(extents)} extents", f"{count}, as {usual}")
    return extents or usual


def _first_results(call: Callable[[], object], outs: Iterable[Any], target: str) -> list[Array]:
    """Time the first call, and copy its results to host memory."""
    with working("running"):
        begun = clock.perf_counter()
        call()
        found = [device_get(out) for out in outs]
    say("run", f"on {target}: {duration(clock.perf_counter() - begun)} for the first call")
    return found


def _verify(errors: Iterable[Array], checked: str, what: str = "an element") -> None:
    """Refuse errors above their bound, and print the largest one.

    Args:
        errors: absolute errors, each divided by its bound.
        checked: the compared elements, in words.
        what: one compared element, in words.

    Raises:
        WrongResultError: an element is beyond its bound.
    """
    with working("verifying"):
        worst = max(float(np.nan_to_num(part, nan=np.inf).max()) for part in errors)
    if worst > 1:
        raise WrongResultError(f"{what} is off by {worst:.3g} of its bound")
    say("verify", f"all {checked} agree with float64; the worst has {worst:.3g} of its bound")


@reports
def attention(
    extents: Annotated[
        list[int] | None,
        typer.Argument(
            min=1,
            metavar="[B H M N D]",
            help="Batches, heads, rows of queries and of keys, and columns. Default: 1 8 512 512 64 "
            "(cuda: 1 8 4096 4096 128, reference: 1 2 100 100 64).",
            show_default=False,
        ),
    ] = None,
    heads_of_keys: Annotated[
        int | None,
        typer.Option(
            min=1, help="Heads of keys and values; a divisor of the heads of queries.", show_default=False
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="Element type: f16, bf16 or f32.")] = "f16",
    causal: Annotated[bool, typer.Option(help="Row i sees the keys up to i + DIAGONAL only.")] = False,
    diagonal: Annotated[
        int | None,
        typer.Option(
            help="Where the causal mask begins, as of tw.attention; 0 is PyTorch's. "
            "Default: N - M, so that the last row sees every key.",
            show_default=False,
        ),
    ] = None,
    target: TargetName = CPU.name,
    time: Annotated[bool, typer.Option(help="Compare its time with NumPy's (cuda: PyTorch's).")] = True,
    seed: Seed = 0,
) -> None:
    """Compute softmax(Q K^T / sqrt(D)) V of random arrays, verify every element, and time it.

    Says each step, and ends with one line `Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>`, where masked
    products do not count, and Q, K, V and the result are moved once each.

    Exit status: 0 when the result is right, 1 when it is wrong, 2 when the request cannot be served.
    """
    choose("target", target, tuple(TARGETS))
    choose("dtype", dtype, tuple(map(str, SUPPORTED)))
    sizes = _sizes("attention", extents, target)
    batches, heads, rows, keys, columns = sizes
    shared = heads_of_keys or heads
    if diagonal is not None and not causal:
        raise UsageError(f"--diagonal {diagonal} without --causal; nearest: --causal --diagonal {diagonal}")
    shift = (keys - rows if diagonal is None else diagonal) if causal else None
    with working("making the arrays"):
        rng, element = np.random.default_rng(seed), dtype_named(dtype).numpy
        q, k, v = (
            rng.standard_normal((batches, h, n, columns)).astype(element)
            for h, n in ((heads, rows), (shared, keys), (shared, keys))
        )
        arrays = [device_put(x, target) for x in (q, k, v, np.full_like(q, np.nan))]
    say("operands", f"Q {by(q.shape)}, K and V {by(k.shape)}, {dtype}: random numbers")
    words: dict[str, Any] = {"causal": causal, "diagonal": shift or 0, "target": target}
    call = functools.partial(attend, *arrays[:3], out=arrays[3], **words)
    (found,) = _first_results(call, arrays[3:], target)
    _verify(_attention_errors(q, k, v, found, shift), f"{found.size} elements")
    if time:
        name = f"attention<{target}, {'causal ' * causal}{dtype} {by(sizes)}>"
        # Pairs of a query and a key that the mask leaves.
        seen = rows * keys if shift is None else int(np.clip(np.arange(rows) + shift + 1, 0, keys).sum())
        pairs = batches * heads * seen
        moved = sum(array.nbytes for array in (q, k, v, found))
        rivals = functools.partial(attention_rivals, arrays[:3], (q, k, v), target, shift)
        perf(call, target, 4 * columns * pairs, moved, name, rivals)


def _attention_errors(q: Array, k: Array, v: Array, found: Array, shift: int | None) -> Iterator[Array]:
    """Yield the errors of 1024 rows of a head at a time, each divided by its bound."""
    scale = 1 / math.sqrt(q.shape[-1])
    for b, h in np.ndindex(q.shape[:2]):
        g = h * k.shape[1] // q.shape[1]
        for begin in range(0, q.shape[2], 1024):
            part = slice(begin, begin + 1024)
            seen = None if shift is None else shift + begin
            one = (q[b, h, part], k[b, g], v[b, g], scale, seen)
            error = np.abs(found[b, h, part].astype(np.float64) - softmax_attention(*one))
            yield error / attention_room(*one)


# ----------------------------------------------------------------
# `tilewright chain`: two products, one after the other.


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
    time: Annotated[bool, typer.Option(help="Compare its time with NumPy's (cuda: PyTorch's).")] = True,
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
    sizes = _sizes("chain", extents, target)
    m, k, n, p = sizes
    with working("making the matrices"):
        rng, element = np.random.default_rng(seed), dtype_named(dtype).numpy
        a, b, c = (rng.standard_normal(shape).astype(element) for shape in ((m, k), (k, n), (n, p)))
        arrays = [device_put(x, target) for x in (a, b, c, np.full((m, p), np.nan, element))]
    say("operands", f"A {by((m, k))}, B {by((k, n))}, C {by((n, p))}, {dtype}: random numbers")
    call = functools.partial(
        gemm_chain, *arrays[:3], out=arrays[3], activation=activation, fused=fused, target=target
    )
    (found,) = _first_results(call, arrays[3:], target)
    with working("verifying"):
        exact = chained(a, b, c, activation)
    _verify([np.abs(found.astype(np.float64) - exact.wanted) / exact.room], f"{found.size} elements")
    if time:
        name = f"chain<{target}, {activation + ' ' if activation else ''}{dtype} {by(sizes)}>"
        moved = sum(array.nbytes for array in (a, b, c, found))
        rivals = functools.partial(chain_rivals, arrays[:3], (a, b, c), target, activation)
        perf(call, target, 2 * m * n * (k + p), moved, name, rivals)


# ----------------------------------------------------------------
# `tilewright reduce`: reduced rows or columns of a product.


DTYPES = ("f16", "bf16", "f32")
"""Dtypes whose results can be verified in float64."""

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
    axis: Annotated[str, typer.Option(help="Reduce each of the rows, or of the columns.")] = "rows",
    dtype: Annotated[str, typer.Option(help=f"Element type: {', '.join(DTYPES)}.")] = "f16",
    activation: Activation = None,
    target: TargetName = CPU.name,
    time: Annotated[bool, typer.Option(help="Compare its time with NumPy's (cuda: PyTorch's).")] = True,
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
    sizes = _sizes("reduce", extents, target)
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
    found = _first_results(call, outs, target)
    with working("verifying"):
        wide, meant = [x.astype(np.float64) for x in (a, b)], MEANINGS[activation]
        sums, sizes_of_sums = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
        elements, unit = meant.meaning(sums), f32.unit_roundoff
        near = meant.steepest * 4 * (k + 8) * unit * sizes_of_sums
        near += meant.error * np.maximum(np.abs(elements), np.abs(sums))
        exact = reductions(elements, near, AXES[axis], unit)
    errors = (
        np.abs(one - exact[name].wanted) / exact[name].room for name, one in zip(names, found, strict=True)
    )
    _verify(errors, f"{blank.size} numbers of {', '.join(names)}", "a number")
    if time:
        name = f"reduce<{target}, {activation + ' ' if activation else ''}{dtype} {by(sizes)} {axis} {of}>"
        moved, asked = sum(array.nbytes for array in (a, b, *found)), (names, AXES[axis])
        rivals = functools.partial(reduce_rivals, (a_there, b_there), (a, b), target, activation, asked)
        perf(call, target, 2 * m * n * k, moved, name, rivals)
