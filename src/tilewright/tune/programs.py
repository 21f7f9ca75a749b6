"""Shared code of example programs: their arguments, and runs that are verified, timed and reported."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_dtypes import finfo

from tilewright.calls import launches
from tilewright.checking.references import softmax_attention
from tilewright.checking.sample import operands
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import TilewrightError, WrongResultError
from tilewright.runtime.drivers import has_device
from tilewright.runtime.gpu_memory import device_get, device_put
from tilewright.runtime.kernel import Bound
from tilewright.targets.target import HOST, target_named
from tilewright.tune.figures import check_drawable
from tilewright.tune.measure import do_bench
from tilewright.tune.trial import Trial

Shapes = Mapping[str, Sequence[int]]

INITS = {1: "integers", 2: "random"}


class ProgramArguments(argparse.Namespace):
    """The arguments of a program.

    Args:
        target: the target that runs it.
        shape: extents of its first problem.
        small: whether it runs small problems.
        how: ``init=``, ``verify=`` and ``time=`` for `run_gemm`, if the program takes numbers.
        picture: the file of its picture, or None.
    """

    target: str
    shape: tuple[int, ...]
    small: bool
    how: dict[str, Any]
    picture: Path | None = None


def parse_args(
    about: str, shapes: Shapes, small: Shapes, extents: str = "", *, picture: bool = False
) -> ProgramArguments:
    """Parse the command line of a program for kernels: ``[--small] [--target …] [verify init time [M N K]]``.

    Args:
        about: the description of the program, whose first line is shown.
        shapes: for each target that it can run on, the extents of its problem.
        small: the same for ``--small``.
        extents: their names, e.g. ``"M N K"``, if numbers can follow: whether every element is verified (0
            or 1), the numbers in the matrices (1 integers, 2 random), whether it is timed (0 or 1), and
            extents, as in Composable Kernel's examples.
        picture: whether the program draws with matplotlib, and takes ``--picture FILE``.

    Example:
        >>> from unittest.mock import patch
        >>> with patch("sys.argv", ["program.py", "--small", "--target", "reference"]):
        ...     asked = parse_args("A kernel.", {"reference": (64, 64)}, {"reference": (8, 8)})
        >>> asked.target, asked.shape
        ('reference', (8, 8))
    """
    parser = argparse.ArgumentParser(description=about.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="a small problem")
    # The fastest target of this machine: a GPU, else one with machine code.
    found = {name: target_named(name) for name in shapes if has_device(name)}
    default = max(found, key=lambda name: (found[name].memory != HOST, found[name].machine_code))
    parser.add_argument("--target", choices=shapes, default=default, help=f"default here: {default}")
    numbers = f"verify (0, 1), init (1 integers, 2 random), time (0, 1); {extents} of the first problem"
    if extents:
        parser.add_argument(
            "numbers", nargs="*", type=int, metavar=f"verify init time {extents}", help=numbers
        )
    if picture:
        parser.add_argument(
            "--picture", type=Path, metavar="FILE.png", help="draw what came out (extra `plot`)"
        )
    asked = parser.parse_args(namespace=ProgramArguments())
    if asked.picture is not None:
        try:
            check_drawable(asked.picture)
        except TilewrightError as error:
            parser.error(f"--picture {asked.picture}: {error}")
    given = getattr(asked, "numbers", None) or [1, 2, 1]
    count = len(extents.split())
    if len(given) not in (3, 3 + count) or given[1] not in INITS or min(given[3:], default=1) < 1:
        parser.error(f"{given}: give verify init time [{extents}], e.g. 1 2 1 512 384 320; init is 1 or 2")
    asked.how = {"verify": bool(given[0]), "init": INITS[given[1]], "time": bool(given[2])}
    asked.shape = tuple(given[3:]) or tuple((small if asked.small else shapes)[asked.target])
    return asked


@launches
def run_gemm(
    bound: Bound,
    dtype: DType,
    shape: Sequence[int],
    target: str,
    *,
    init: str = "random",
    verify: bool = True,
    time: bool = True,
) -> str:
    """Run a kernel ``C = A @ B.T``, verify every element, and report the time of a call.

    Args:
        bound: the kernel, with constants ``tile`` and ``mma``; takes A (M, K), B (N, K), C (M, N).
        dtype: element type of A and B.
        shape: extents (M, N, K).
        target: the target that runs it; ``"reference"``, which looks for hazards, is not timed.
        init: the numbers in A and B, see `operands`.
        verify: whether to verify.
        time: whether to measure; if not, the time of the first call is shown, which may have compiled.

    Raises:
        WrongResultError: an element is wrong.

    Example:
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="N K", C="M N")
        ... def small_gemm(A, B, C, *, tile, mma):
        ...     m, n = tw.block_index(tw.ceil_div(C.shape, tile[:2]))
        ...     acc = tw.accumulator(mma)
        ...     for k in tw.range(tw.ceil_div(A.shape[1], tile[2])):
        ...         a = tw.load(A.tile((tile[0], tile[2]), (m, k)), tw.operand_a(mma, tile[2]))
        ...         b = tw.load(B.tile((tile[1], tile[2]), (n, k)), tw.operand_b(mma, tile[2]))
        ...         tw.mma(a, b, acc)
        ...     tw.copy(acc, C.tile(tile[:2], (m, n)))
        >>> mma = tw.TiledMma(tw.atoms.MMA_F16, tile=(32, 32))
        >>> bound = small_gemm.bind(tile=(32, 32, 16), mma=mma)
        >>> print(tw.testing.run_gemm(bound, tw.f16, (33, 20, 40), "reference", init="integers"))
        small_gemm<reference, f16, 33x20x40 in tiles of 32x32x16, mma.m16n8k16.f32.f16> on numpy: correct: ...
        Perf: ...
    """
    tile, mma = bound.constants["tile"], bound.constants["mma"]
    about = f"{_by(shape)} in tiles of {_by(tile)}, {mma.atom}"
    m, n, k = shape
    # "nt": A is stored row after row, and B (K, N) column after column, which is Bᵀ row after row.
    made = operands(init, dtype_named(dtype), (m, n, k), layout="nt")
    trial = Trial(bound, made, target, mma.atom, about)
    executable, seconds = trial.run()
    said = ""
    if verify:
        comparison = trial.verify()
        comparison.raise_if_wrong()
        said = f"{trial.name} on {executable.arch}: {comparison}\n"
    is_timed = time and target_named(target).machine_code
    return said + trial.perf(None if is_timed else 1e6 * seconds)


@launches
def run_attention(
    bound: Bound, dtype: DType, shape: Sequence[int], target: str, *, causal: bool = False
) -> str:
    """Run ``O = softmax(Q Kᵀ / sqrt(D)) V``, verify one head element by element, and report the speed.

    Args:
        bound: the kernel; takes Q, K, V, O (B, H, M or N, D), the scale, and, if causal, the number of
            keys that the first query sees besides its own.
        dtype: element type of Q, K, V and O.
        shape: extents (B, H, M, N, D).
        target: the target that runs it.
        causal: whether query i sees the keys up to i + N - M only.

    Raises:
        WrongResultError: an element is wrong.

    Example:
        16 queries see 16 keys, in one tile:

        >>> import tilewright as tw
        >>> mma = tw.TiledMma(tw.atoms.MMA_F16, tile=(16, 16))
        >>> @tw.kernel(Q="B H M D", K="B H N D", V="B H N D", O="B H M D", scale=tw.f32, shift=int)
        ... def tiny(Q, K, V, O, scale, shift):
        ...     h, b = tw.block_index((Q.shape[1], Q.shape[0]))
        ...     scores, acc = tw.accumulator(mma), tw.accumulator(mma)
        ...     keys, values = K[b, h].tile((16, 16), (0, 0)), V[b, h].tile((16, 16), (0, 0)).permute(1, 0)
        ...     q = tw.load(Q[b, h].tile((16, 16), (0, 0)), tw.operand_a(mma, 16))
        ...     tw.mma(q, tw.load(keys, tw.operand_b(mma, 16)), scores)
        ...     weights = tw.exp(scores * scale)
        ...     rounded = tw.redistribute(weights.to(V.dtype), tw.operand_a(mma, 16))
        ...     tw.mma(rounded, tw.load(values, tw.operand_b(mma, 16)), acc)
        ...     tw.copy(acc / tw.reduce_sum(weights, 1), O[b, h].tile((16, 16), (0, 0)))
        >>> print(tw.testing.run_attention(tiny.bind(), tw.f16, (2, 1, 16, 16, 16), "reference"))
        attention<reference, f16 2x1x16x16x16>: correct, largest error ...
    """
    batch, heads, queries, keys, depth = shape
    kind = dtype_named(dtype)
    rng, element = np.random.default_rng(0), kind.numpy
    q, k, v = (
        rng.standard_normal((batch, heads, length, depth)).astype(element) for length in (queries, keys, keys)
    )
    scale, shift = 1 / math.sqrt(depth), keys - queries
    arrays = [device_put(x, target) for x in (q, k, v, np.full_like(q, np.nan))]

    def call() -> str:
        return bound(*arrays, scale, shift, target=target).target

    ran = call()
    if ran != target:
        raise WrongResultError(f"asked for target {target}, but {ran} ran")
    # One head is enough to see that all are right: they differ in their data alone.
    at = (batch - 1, heads - 1)
    expected = softmax_attention(q[at], k[at], v[at], scale, shift if causal else None)
    error = np.abs(device_get(arrays[3])[at].astype(np.float64) - expected).max()
    most = 4 * float(finfo(element).eps) * np.abs(expected).max()  # type: ignore[no-untyped-call]
    name = f"attention<{target}, {'causal ' * causal}{kind} {_by(shape)}>"
    if not error <= most:
        raise WrongResultError(f"{name}: an element is off by {error}, more than {most}")
    speed = ""
    if target_named(target).machine_code:
        flops = 4 * math.prod(shape) * (0.5 if causal else 1)
        speed = f"; {flops / do_bench(call, target) / 1e6:.0f} Gflop/s"
    return f"{name}: correct, largest error {error:.1e}{speed}"


def _by(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
