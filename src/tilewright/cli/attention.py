"""`tilewright attention`: attend to random keys, verify every element, and time it."""

from __future__ import annotations

import functools
import math
import time as clock
from typing import Annotated, Any

import numpy as np
import typer

from tilewright.checking.compare import Array
from tilewright.checking.references import attention_room, softmax_attention
from tilewright.cli.console import UsageError, choose, duration, reports, say, working
from tilewright.cli.options import Seed, TargetName
from tilewright.cli.perf import by, perf
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import WrongResultError
from tilewright.ops.attending.problem import SUPPORTED
from tilewright.ops.attention import attention as attend
from tilewright.runtime.device_array import device_get, device_put
from tilewright.targets.target import CPU, CUDA, REFERENCE, TARGETS
from tilewright.tune.op_rivals import attention_rivals

SIZES = {
    REFERENCE.name: [1, 2, 100, 100, 64],
    CPU.name: [1, 8, 512, 512, 64],
    CUDA.name: [1, 8, 4096, 4096, 128],
}
"""Extents by target, if none are given; those of a GPU for the others."""


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
            min=1,
            help="Heads of keys and values, of which that of queries is a multiple.",
            show_default=False,
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
    kernel: Annotated[
        str | None,
        typer.Option(help="Which kernel: warps or warpgroups. Default: as tw.attention.", show_default=False),
    ] = None,
    time: Annotated[bool, typer.Option(help="Time it beside NumPy (cuda: PyTorch).")] = True,
    seed: Seed = 0,
) -> None:
    """Compute softmax(Q K^T / sqrt(D)) V of random arrays, verify every element, and time it.

    Says each step, and ends with one line `Perf: <ms> ms, <x> TFlops, <y> GB/s, <name>`, where those products
    count that a mask leaves, and the bytes are those of Q, K, V and the result once each.

    Exit status: 0 when the result is right, 1 when it is wrong, 2 when the request cannot be served.
    """
    choose("target", target, tuple(TARGETS))
    choose("dtype", dtype, tuple(map(str, SUPPORTED)))
    usual = SIZES.get(target, SIZES[CUDA.name])
    sizes = extents or usual
    if len(sizes) != 5:
        raise UsageError(f"{len(sizes)} extents; nearest legal choice: five, as {usual}")
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
    words: dict[str, Any] = {
        "causal": causal,
        "diagonal": shift or 0,
        "kernel": kernel,
        "target": target,
    }
    call = functools.partial(attend, *arrays[:3], out=arrays[3], **words)
    with working("running"):
        begun = clock.perf_counter()
        call()
        found = device_get(arrays[3])
    say("run", f"on {target}: {duration(clock.perf_counter() - begun)} for the first call")
    with working("verifying"):
        worst = _worst((q, k, v, found), shift)
    say(
        "verify",
        f"all {found.size} elements agree with float64; the worst has {worst:.3g} of its bound",
    )
    if time:
        name = f"attention<{target}, {'causal ' * causal}{dtype} {by(sizes)}>"
        pairs = math.prod(q.shape[:2]) * _seen(rows, keys, shift)
        moved = sum(array.nbytes for array in (q, k, v, found))
        rivals = functools.partial(attention_rivals, arrays[:3], (q, k, v), target, shift)
        perf(call, target, 4 * columns * pairs, moved, name, rivals)


def _seen(rows: int, keys: int, shift: int | None) -> int:
    """How many pairs of a row of queries and a key a mask leaves."""
    return rows * keys if shift is None else int(np.clip(np.arange(rows) + shift + 1, 0, keys).sum())


def _worst(arrays: tuple[Array, Array, Array, Array], shift: int | None) -> float:
    """The largest error, as a share of its bound, head by head.

    Raises:
        WrongResultError: an element is beyond its bound.
    """
    q, k, v, found = arrays
    worst, scale = 0.0, 1 / math.sqrt(q.shape[-1])
    for b, h in np.ndindex(q.shape[:2]):
        g = h * k.shape[1] // q.shape[1]
        for begin in range(0, q.shape[2], 1024):
            part = slice(begin, begin + 1024)
            seen = None if shift is None else shift + begin
            one = (q[b, h, part], k[b, g], v[b, g], scale, seen)
            error = np.abs(found[b, h, part].astype(np.float64) - softmax_attention(*one))
            worst = max(worst, float(np.nan_to_num(error / attention_room(*one), nan=np.inf).max()))
    if worst > 1:
        raise WrongResultError(f"an element is off by {worst:.3g} of its bound")
    return worst
