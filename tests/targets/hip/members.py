"""Every operation of the library, on ragged sizes with several tiles in each direction.

A case is called with a target, computes on it, and compares every element under the bound that its check
derives.
"""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.ops import complex_cases
from tests.ops.attending import Problem
from tests.ops.test_col2im import PROBLEMS as WINDOWS
from tests.ops.test_col2im import attempt as add_windows
from tests.ops.test_gemm_chain import Chain
from tests.ops.test_grouped import check as check_groups
from tests.ops.test_grouped import operands as grouped_operands
from tests.ops.test_mxfp4 import decoded
from tests.ops.test_mxfp4 import drawn as mx_drawn
from tests.ops.test_mxfp4 import placed as mx_placed
from tests.ops.test_mxfp4 import room as mx_room
from tests.problems.gated_problems import carried_out as gated
from tests.problems.reduced_problems import carried_out as reduced

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm, gemm_bound
from tilewright.checking.sample import normal
from tilewright.ops.planning import widened_on
from tilewright.ops.products import output_dtype
from tilewright.targets.matrix_cores import nearest
from tilewright.tune.einsum_trial import Contracted, EinsumTrial
from tilewright.tune.scaled_trial import ScaledOperands, ScaledTrial

from . import machine

CONVOLUTION = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "12_convolution.py"))

Case = Callable[[str], None]


def matrix(shape: tuple[int, ...], dtype: tw.DType, order: str = "n", seed: int = 0) -> Any:
    """Random numbers, contiguous along the rows or, if transposed, along the columns."""
    rng, extents = np.random.default_rng(seed), shape if order == "n" else (*shape[:-2], *shape[:-3:-1])
    made = normal(rng, extents, dtype) if dtype.is_float else rng.integers(-99, 99, extents).astype(np.int8)
    return made if order == "n" else made.swapaxes(-1, -2)


def product(kind: str, shape: tuple[int, int, int], order: str = "nn", **words: Any) -> Case:
    """`tw.matmul` of two matrices by matrix cores, into the middle of numbers that must not change."""

    def run(target: str) -> None:
        (m, n, k), dtype = shape, tw.dtype(kind)
        a, b = matrix((m, k), dtype, order[0]), matrix((k, n), dtype, order[1], 1)
        around = np.full((m + 2, n + 8), -77, tw.dtype(words.get("out_dtype") or output_dtype(dtype)).numpy)
        made = around[1:-1, :n]
        made[:] = np.nan if dtype.is_float else -(2**31)
        called = {word: value for word, value in words.items() if word != "out_dtype"}
        tw.matmul(a, b, made, target=target, **called)
        compare_gemm(a, b, made, Accumulation.default(dtype)).raise_if_wrong()
        made[:] = -77
        assert (around == -77).all()
        record = machine.MACHINES[target]
        sums = dtype.computed if dtype.is_float else tw.i32
        features = record.architecture(record.arch).features
        (multiplied,) = widened_on(dtype, features) or (dtype,)
        atom = nearest(multiplied, sums, features)
        if atom is not None and not target.endswith("reference"):
            assert any(name.startswith(f"v_{atom.instruction}_") for name in machine.EXECUTED)

    return run


def combined(target: str) -> None:
    """``gelu(0.5 * a @ b + 2 * c + bias) + residual``."""
    a, b, c, r = (matrix(s, tw.f16, seed=n) for n, s in enumerate(((70, 41), (41, 99), (70, 99), (70, 99))))
    bias = matrix((99,), tw.f16, seed=9)
    words = {"c": c, "alpha": 0.5, "beta": 2.0, "bias": bias, "activation": "gelu", "residual": r}
    made = tw.matmul(a, b, **words, target=target)
    exact, _, bound = gemm_bound(a, b, Accumulation.default(tw.f16), tw.f64)
    value = 0.5 * exact + 2.0 * c.astype(np.float64) + bias
    expected = value * 0.5 * (1 + np.vectorize(math.erf)(value / math.sqrt(2))) + r
    # The slope of gelu is 1.13 at most; 8 roundings of f32 on the way, and that of the result.
    room = 1.13 * bound + 8 * 2.0**-23 * (np.abs(value) + np.abs(r) + 1) + 2.0**-11 * np.abs(expected)
    assert (np.abs(made - expected) <= 1.01 * room + 2.0**-24).all()


def grades(precision: str, order: str = "n", **words: Any) -> Case:
    """f32 by halves, or rounded to halves, multiplied by matrix cores."""

    def run(target: str) -> None:
        a, b = matrix((70, 104), tw.f32, order), matrix((104, 40), tw.f32, "n", 1)
        made = tw.matmul(a, b, precision=precision, target=target, **words)
        bound = gemm_bound(a, b, Accumulation.default(tw.f32), tw.f32)[2]
        sizes = np.abs(a).astype(np.float64) @ np.abs(b).astype(np.float64)
        lost = {"f32": 2.0**-21, "f16": 2.0**-10}[precision]
        off = np.abs(made - a.astype(np.float64) @ b.astype(np.float64))
        assert (off <= bound + lost * sizes).all(), f"{(off / (bound + lost * sizes)).max():.3} of the bound"

    return run


def groups(kind: str) -> Case:
    """Rows in groups, one of them empty; the kernel reads their ends."""

    def run(target: str) -> None:
        ends = [33, 33, 70]
        a, b = grouped_operands(ends, kind, shape=(70, 40, 72))
        made = np.full((70, 72), np.nan, np.float32)
        tw.grouped_matmul(a, b, np.asarray(ends, np.int32), made, target=target)
        check_groups(a, b, ends, made, np.nan)

    return run


def along_k(target: str) -> None:
    """Groups along K, after which operands hold NaN."""
    ends = [33, 33, 70]
    a, b = matrix((80, 40), tw.f16), matrix((80, 72), tw.f16, seed=1)
    a[70:] = b[70:] = np.nan
    made = np.full((3, 40, 72), np.nan, np.float32)
    tw.grouped_matmul(a.T, b, np.asarray(ends, np.int32), made, target=target)
    for one, begin, end in zip(made, [0, *ends], ends, strict=False):
        compare_gemm(a[begin:end].T, b[begin:end], one, Accumulation.default(tw.f16)).raise_if_wrong()


def listed(target: str) -> None:
    """Products of several sizes in one launch."""
    sizes, rng = ((33, 24, 72), (70, 40, 24), (1, 8, 130)), np.random.default_rng(0)
    lists: dict[str, list[Any]] = {}
    machine.REACHED[:] = []
    for name, at in (("a", (0, 1)), ("b", (1, 2)), ("out", (0, 2))):
        shapes = [(size[at[0]], size[at[1]]) for size in sizes]
        ends = np.cumsum([m * n + 8 for m, n in shapes])
        whole = normal(rng, (int(ends[-1]),), tw.f16)
        machine.REACHED.append(whole)
        parts = zip(np.split(whole, ends[:-1]), shapes, strict=True)
        lists[name] = [part[: m * n].reshape(m, n) for part, (m, n) in parts]
    tw.grouped_matmul(**lists, target=target)
    for a, b, made in zip(*lists.values(), strict=True):
        compare_gemm(a, b, made, Accumulation.default(tw.f16)).raise_if_wrong()


def batched(target: str) -> None:
    """A stack of matrices times one common matrix."""
    a, b = matrix((3, 70, 40), tw.f16), matrix((40, 72), tw.f16, seed=1)
    made = tw.matmul(a, b, target=target)
    for one, found in zip(a, made, strict=True):
        compare_gemm(one, b, found, Accumulation.default(tw.f16)).raise_if_wrong()


def complex_product(name: str, method: str = "4m") -> Case:
    """Interleaved and planar numbers, batches, conjugates and factors, by four real products or three."""

    def run(target: str) -> None:
        arrays, factors, conjugates = complex_cases.made(name)
        flags = {"conjugate_a": bool(conjugates[0]), "conjugate_b": bool(conjugates[1])}
        words = factors | flags | {"method": method, "target": target}
        made = tw.complex_matmul(**arrays, **words)
        factors = factors | {"beta": factors["beta"] if arrays.get("c") is not None else 0}
        given = (arrays["a"], arrays["b"], arrays.get("c"))
        complex_cases.check(made, *given, conjugates=conjugates, method=method, **factors)

    return run


def with_scales(kinds: tuple[str, str], shape: tuple[int, int, int], **words: Any) -> Case:
    """`tw.scaled_mm`, with scales, a bias and perhaps blocks or groups."""
    activation = words.pop("activation", None)

    def run(target: str) -> None:
        a, b = map(tw.dtype, kinds)
        trial = ScaledTrial(ScaledOperands.drawn(shape, (a, b), **words), target, activation=activation)
        trial.run()
        found = trial.verify()
        assert found.ok, f"{trial.name}: {found}"
        if a.is_float and not target.endswith("reference"):
            products = {name for name in machine.EXECUTED if name.startswith(("v_mfma_", "v_wmma_"))}
            as_it_is = "gfx942" in target and kinds == ("f8e4m3fnuz",) * 2
            assert products, "widened"
            assert as_it_is == any("fp8_fp8" in name for name in products)

    return run


def mxfp4(wide: str) -> Case:
    """`tw.scaled_mm` of weights of mxfp4."""

    def run(target: str) -> None:
        a, codes, scales = mx_drawn(40, 72, 96, wide)
        b, scale = mx_placed(codes, scales, "reference")
        made = tw.scaled_mm(a, b, scale_b=scale, group=32, target=target).astype(np.float64)
        weights = decoded(codes, scales)
        assert (np.abs(made - a.astype(np.float64) @ weights) <= mx_room(a, weights, wide)).all()

    return run


def contraction(
    subscripts: str, *shapes: tuple[int, ...], kind: str = "f16", activation: str | None = None, **words: Any
) -> Case:
    """`tw.einsum`, with operands and a result whose axes are in any order."""

    def run(target: str) -> None:
        made = Contracted.drawn(subscripts, (shapes[0], shapes[1]), tw.dtype(kind), **words)
        trial = EinsumTrial(made, target, activation)
        trial.run()
        found = trial.verify()
        assert found.ok, f"{trial.name}: {found}"

    return run


def reduction(number: int) -> Case:
    """`tw.reduced_matmul`; a number selects sizes and functions."""

    def run(target: str) -> None:
        wrong = reduced(number, target, "reference")
        assert not wrong, wrong

    return run


def gating(number: int) -> Case:
    """`tw.gated_matmul`; a number selects sizes, dtypes and functions."""

    def run(target: str) -> None:
        wrong = gated(number, target, "reference")
        assert not wrong, wrong

    return run


def attended(element: str, columns: tuple[int, int], rows: tuple[int, int] = (140, 70), **words: Any) -> Case:
    """`tw.attention`, with logarithms of sums."""

    def run(target: str) -> None:
        problem = Problem((1, 2, 1), rows, columns, tw.dtype(element), **words)
        out = np.full((1, 2, rows[0], columns[1]), np.nan, problem.q.dtype)
        lse = np.full(out.shape[:-1], np.nan, np.float32)
        tw.attention(problem.q, problem.k, problem.v, **problem.words, out=out, lse=lse, target=target)
        problem.check(out)
        problem.check_lse(lse)

    return run


def chained(shape: tuple[int, int, int, int], element: str, activation: str | None) -> Case:
    """`tw.gemm_chain` in one kernel."""

    def run(target: str) -> None:
        chain = Chain(shape, tw.dtype(element), activation)
        chain.check(chain.run(target=target, fused=True))

    return run


def convolved(target: str) -> None:
    """A product of a view of an image, with strides and padding."""
    rng, taps = np.random.default_rng(0), (3, 2)
    x, f, bias = (rng.standard_normal(s).astype(np.float16) for s in ((2, 9, 8, 16), (72, 96), (72,)))
    seen = np.ascontiguousarray(CONVOLUTION["windows"](x, taps, 2, 1))
    y = np.full((len(seen), 72), np.nan, np.float16)
    CONVOLUTION["convolution"].bind(taps=taps, stride=2, padding=1)(x, f, bias, y, target=target)
    CONVOLUTION["check"](y, seen, f, bias)


RAGGED = (136, 72, 40)
ADDED = ("rows and columns", "one dimension", "volumes in groups", "channels first", "channels in groups")
MATMUL = {
    "f16": product("f16", RAGGED),
    "bf16": product("bf16", (70, 99, 41), "tn"),
    "f32": product("f32", (33, 70, 40)),
    "f64": product("f64", (50, 34, 24), "tt"),
    "i8": product("i8", (65, 48, 96), "nt"),
    "fp8": product("f8e4m3", (40, 40, 33), "nt"),
    "fp8 of gfx942": product("f8e4m3fnuz", (131, 72, 72)),
    "batched": batched,
    "split K in a workspace": product("f16", (70, 40, 200), split_k=3, reduction="workspace"),
    "split K by scattered sums": product("f16", (70, 40, 200), split_k=2, reduction="reduce-scatter"),
    "split K in turns": product("f16", (70, 40, 200), split_k=3, reduction="turnstile"),
    "split K by atomics": product("f16", (70, 40, 200), split_k=3, reduction="atomic", out_dtype="f32"),
    "streamed": product("f16", (70, 40, 200), split_k="stream"),
    "f32 by halves": grades("f32"),
    "f32 as f16": grades("f16", "t", batch_invariant=True),
    "with everything": combined,
}

MEMBERS: dict[str, dict[str, Case]] = {
    "matmul": MATMUL,
    "grouped_matmul": {"rows": groups("f16"), "along K": along_k, "list": listed},
    "complex_matmul": {
        **{name: complex_product(name) for name in ("c64, everything", "c128", "c32", "bf16 planes")},
        "f32 planes by three": complex_product("f32 planes", "3m"),
    },
    "scaled_mm": {
        "f16 by fp8": with_scales(("f16", "f8e4m3"), RAGGED, layout="nn", activation="gelu"),
        "fp8 of gfx942": with_scales(("f8e4m3fnuz", "f8e4m3fnuz"), RAGGED),
        "f16 by fp8 of gfx942": with_scales(("f16", "f8e4m3fnuz"), RAGGED),
        "bf16 by i8": with_scales(("bf16", "i8"), RAGGED, activation="tanh"),
        "i8 by i8": with_scales(("i8", "i8"), RAGGED),
        "blocks": with_scales(("f8e4m3", "f8e4m3"), (40, 40, 200), blocks=(1, 128)),
        "i4 in groups": with_scales(("f16", "i4"), (40, 72, 96), group=32, zeros=True),
        **{f"mxfp4 by {kind}": mxfp4(kind) for kind in ("f16", "bf16")},
        "f4 in groups": with_scales(("bf16", "f4e2m1"), (40, 72, 96), group=32),
    },
    "einsum": {
        "permuted": contraction("abk,kc->cab", (3, 20, 40), (40, 70), residual=True),
        "several axes": contraction(
            "ijkl,klm->mji", (5, 9, 3, 16), (3, 16, 33), kind="bf16", activation="tanh", multiply=True
        ),
        "f32": contraction("mk,nk->nm", (70, 40), (33, 40), kind="f32"),
    },
    "gated_matmul": {str(number): gating(number) for number in (1, 2, 3)},
    "reduced_matmul": {str(number): reduction(number) for number in (1, 2)},
    "attention": {
        "f16, causal": attended("f16", (64, 40), diagonal=-60),
        "bf16, wide": attended("bf16", (72, 128), (70, 40)),
        "f16, widest": attended("f16", (256, 200), (40, 20)),
        "f32": attended("f32", (24, 33), (70, 40)),
        "bf16, large scores": attended("bf16", (64, 40), (70, 40), sizes=(2.0**30, 2.0**30), whole=True),
    },
    "gemm_chain": {
        "f16": chained((140, 40, 90, 56), "f16", "relu"),
        "bf16": chained((33, 130, 70, 17), "bf16", "silu"),
    },
    "col2im": {name: partial(add_windows, WINDOWS[name]) for name in ADDED},
    "convolution": {"f16": convolved},
}
"""By the operation's name in the library, and what is particular of a case."""

DEEP = {"attention: f32, deep": attended("f32", (136, 16), (20, 20))}
"""What has the smallest tiles; on gfx942 its listing takes long to execute."""
