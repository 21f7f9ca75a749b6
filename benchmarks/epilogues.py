"""Layers in one kernel (dropout, reductions, gates, adapters, norms) compared with PyTorch, in turns.

    python benchmarks/epilogues.py [--target cuda|cpu] [--quick] [--only CASE ...] [--json results/NAME.json]
    python benchmarks/epilogues.py --masked [--target cuda|cpu] [--quick] [--json results/NAME.json]

There are five cases.  A layer with bias, dropout and residual is compared with the same without dropout, and
with PyTorch's steps.  Maxima and log-sum-exp of a product's rows are compared with PyTorch's product and
`logsumexp`, and with the product alone.  A gated layer, ``silu(x @ gate) * (x @ up)``, is compared with
PyTorch's two products and the steps after them, and with the two products alone.  A layer with an adapter of
low rank, ``x w + s (x a) b`` in two kernels and in one, is compared with PyTorch's three products, with two
if ``x a`` is known, and
with our product ``x w`` alone.  RMSNorm before a layer is compared with PyTorch's steps, compiled and not,
and with our product alone.  With ``--target cpu``, NumPy replaces PyTorch.  Every result is compared with
steps in float64 before it is timed.  For the last two cases the counted limit is the time of the operations
at the peak rate of the machine.

With ``--masked``, masks that leave out tiles are compared with whole products: the lower triangle of a
product, a triangular operand, and `tw.gram`.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from reporting import arguments, effort, keep, table

import tilewright as tw
from tilewright.targets.target import CUDA
from tilewright.tune.measure import measure
from tilewright.tune.trial import OURS

STEPS, PRODUCT, WITHOUT = "steps", "the product alone", "ours without dropout"
SHARE, SEED = 0.1, 11

DROPOUT, LOGITS, GATED, GATED_BF16 = "dropout", "logsumexp", "gated", "gated bf16"
PRODUCTS = "the two products alone"
ADAPTER, NORM = "adapter", "RMS norm"
IN_ONE = "ours in one kernel"
KNOWN, STEPS_KNOWN, COMPILED = "ours, x a is known", "steps, x a is known", "compiled steps"
OURS_ALONE, LIMIT = "ours of x w alone", "counted limit"
RANKS = (16, 64)
ON_GPU = [
    (DROPOUT, (4096, 4096, 4096)),
    (DROPOUT, (8192, 8192, 1024)),
    (DROPOUT, (16, 4096, 4096)),
    (LOGITS, (4096, 32768, 4096)),
    (LOGITS, (4096, 32768, 1024)),
    (LOGITS, (16, 32768, 4096)),
    *((what, shape) for what in (GATED, GATED_BF16) for shape in ((4096,) * 3, (16, 14336, 4096))),
    (GATED_BF16, (2048, 14336, 4096)),
    *((ADAPTER, (4096, 4096, 4096, rank)) for rank in RANKS),
    (ADAPTER, (16384, 4096, 4096, 16)),
    (ADAPTER, (16, 4096, 4096, 16)),
    *((NORM, shape) for shape in ((4096, 4096, 4096), (16384, 4096, 4096), (16, 4096, 4096))),
]
ON_CPU = [(DROPOUT, (512, 512, 512)), (LOGITS, (256, 4096, 256)), (GATED, (512, 512, 512))]
ON_CPU += [(ADAPTER, (512, 512, 512, 16)), (NORM, (512, 512, 512))]
QUICK = [(DROPOUT, (64, 96, 64)), (LOGITS, (40, 600, 64)), (GATED, (64, 96, 64))]
QUICK += [(ADAPTER, (64, 96, 64, 8)), (NORM, (64, 96, 64))]

Calls = dict[str, Callable[[], Any]]


def drawn(shape: tuple[int, ...]) -> dict[str, np.ndarray[Any, Any]]:
    """Draw x (M, K), w (N, K), bias (N,) and residual (M, N), in f32."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    shapes = {"x": (m, k), "w": (n, k), "bias": (n,), "residual": (m, n)}
    made = {name: rng.standard_normal(one, np.float32) for name, one in shapes.items()}
    made["w"] /= np.float32(np.sqrt(k))
    return made


@tw.kernel(X="M K", W="N K", T="M R", B="N R", Y="M N", s=tw.f32)
def adapted(X, W, T, B, Y, s):
    for m, n in tw.tiles(Y):
        acc, low = tw.zeros(), tw.zeros()
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
        for r in tw.steps(T.shape[1]):
            low += T[m, r] @ B[n, r].T
        Y[m, n] = acc + s * low


@tw.kernel(X="M K", W="N K", Y="M N", eps=tw.f32)
def normalised(X, W, Y, eps):
    for m, n in tw.tiles(Y):
        acc, square = tw.zeros(), tw.zeros((m,), tw.f32)
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
            x = X[m, k].to(tw.f32)
            square += (x * x).sum(axis=1)
        Y[m, n] = acc * tw.rsqrt(square / X.shape[1] + eps)[:, None]


@tw.kernel(X="M K", W="N K", A="R K", B="N R", Y="M N", s=tw.f32)
def low_rank(X, W, A, B, Y, s):
    for m, n in tw.tiles(Y):
        acc, low = tw.zeros(), tw.zeros()
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
            low += X[m, k] @ A[:, k].T
        Y[m, n] = acc + (s * low).to(X.dtype) @ B[n].T


SCALE, EPS = 0.5, 1e-5


def layers_on_gpu(what: str, shape: tuple[int, ...]) -> Calls:
    """Return the verified calls of a layer with an adapter, or behind a norm, in bf16."""
    import torch

    functional, (m, n, k, *rank) = torch.nn.functional, shape
    draw = torch.Generator("cuda").manual_seed(0)

    def normal(*extents: int) -> Any:
        made = torch.randn(extents, generator=draw, device="cuda") / extents[-1] ** 0.5
        return made.to(torch.bfloat16)

    x, w, out = normal(m, k) * k**0.5, normal(n, k), normal(m, n)
    alone = functools.partial(tw.matmul, x, w.T, out=out)
    rows = slice(None, None, max(m // 64, 1))
    wide = x[rows].double()
    if what == NORM:
        weight = torch.ones(k, device="cuda", dtype=x.dtype)

        def steps() -> Any:
            return functional.linear(functional.rms_norm(x, (k,), weight, EPS), w)

        ours = functools.partial(normalised, x, w, out, EPS)
        want = (wide / (wide.square().mean(1, keepdim=True) + EPS).sqrt()) @ w.double().T
        calls: Calls = {OURS: ours, STEPS: steps, COMPILED: torch.compile(steps), OURS_ALONE: alone}
    else:
        a, b = normal(*rank, k), normal(n, *rank)
        t = functional.linear(x, a)

        def both() -> None:
            tw.matmul(x, a.T, out=t)
            adapted(x, w, t, b, out, SCALE)

        both()
        want = wide @ w.double().T + SCALE * (t[rows].double() @ b.double().T)
        ours = functools.partial(adapted, x, w, t, b, out, SCALE)
        calls = {
            OURS: both,
            IN_ONE: functools.partial(low_rank, x, w, a, b, out, SCALE),
            STEPS: lambda: torch.addmm(functional.linear(x, w), functional.linear(x, a), b.T, alpha=SCALE),
            KNOWN: ours,
            STEPS_KNOWN: lambda: torch.addmm(functional.linear(x, w), t, b.T, alpha=SCALE),
            OURS_ALONE: alone,
        }
    for call in (ours, *([calls[IN_ONE]] if IN_ONE in calls else [])):
        out.fill_(float("nan"))
        call()
        right = (out[rows].double() - want).abs() < 2.0**-7 * (1 + want.abs())
        assert bool(right.all()), "an element is wrong"
    return calls


def layers_on_cpu(what: str, shape: tuple[int, ...]) -> Calls:
    """Do the same with NumPy in f32."""
    m, n, k, *rank = shape
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((m, k), np.float32), rng.standard_normal((n, k), np.float32)
    out = np.full((m, n), np.nan, np.float32)
    alone = functools.partial(tw.matmul, x, w.T, out=out, target="cpu")
    if what == NORM:
        ours = functools.partial(normalised, x, w, out, EPS, target="cpu")

        def steps() -> Any:
            return (x / np.sqrt((x * x).mean(1, keepdims=True) + np.float32(EPS))) @ w.T

        calls: Calls = {OURS: ours, STEPS: steps, OURS_ALONE: alone}
    else:
        t, b = rng.standard_normal((m, *rank), np.float32), rng.standard_normal((n, *rank), np.float32)
        ours = functools.partial(adapted, x, w, t, b, out, SCALE, target="cpu")

        def steps() -> Any:
            return x @ w.T + np.float32(SCALE) * (t @ b.T)

        calls = {OURS: ours, STEPS_KNOWN: steps, OURS_ALONE: alone}
    ours()
    assert np.abs(out - steps()).max() < 1e-4 * k**0.5, "an element is wrong"
    return calls


def limit_us(what: str, shape: tuple[int, ...], call: str) -> float:
    """Return the time of the operations of a call at the peak rate of an H200 in bf16, and of its bytes."""
    rates = CUDA.architecture("sm_90a").rates
    assert rates is not None
    board, (m, n, k, *rank) = rates.boards[0], shape
    operations, moved = m * n * k, m * k + n * k + m * n
    if what == ADAPTER:
        (r,) = rank
        operations += m * n * r + (m * k * r if call in (OURS, IN_ONE) else 0)
        moved += m * r + n * r + (m * k + k * r + m * r if call == OURS else 0)
    peak = rates.tensor_flops["bf16"] * board.multiprocessors * board.clock_mhz * 1e6
    return 1e6 * max(2 * operations / peak, 2 * moved / (board.memory_gbytes_per_s * 1e9))


def on_gpu(what: str, shape: tuple[int, ...]) -> Calls:
    """Return the verified calls of a case in f16."""
    import torch

    functional = torch.nn.functional
    if what in (ADAPTER, NORM):
        return layers_on_gpu(what, shape)
    if what in (GATED, GATED_BF16):
        return gated_on_gpu(shape, torch.bfloat16 if what == GATED_BF16 else torch.float16)
    x, w, bias, residual = (torch.from_numpy(one).cuda().half() for one in drawn(shape).values())
    wide = x.double() @ w.double().T
    if what == LOGITS:
        ours = functools.partial(tw.reduced_matmul, x, w.T, ("max", "logsumexp"))

        def reduced() -> Any:
            logits = functional.linear(x, w).float()
            return logits.amax(1), torch.logsumexp(logits, 1)

        for made, want in zip(ours(), (wide.amax(1), torch.logsumexp(wide, 1)), strict=True):
            assert bool(((made.double() - want).abs() < 1e-3).all()), "a reduction is wrong"
        return {OURS: ours, STEPS: reduced, PRODUCT: lambda: functional.linear(x, w)}
    out = torch.full(shape[:2], float("nan"), device="cuda", dtype=x.dtype)
    words = {"bias": bias, "residual": residual, "seed": SEED}
    calls: Calls = {
        OURS: functools.partial(tw.einsum, "mk,nk->mn", x, w, out, dropout=SHARE, **words),
        WITHOUT: functools.partial(tw.einsum, "mk,nk->mn", x, w, out, **words),
        STEPS: lambda: functional.dropout(functional.linear(x, w, bias), SHARE) + residual,
        PRODUCT: lambda: functional.linear(x, w, bias),
    }
    calls[OURS]()
    compared(
        out.cpu().double().numpy(), (wide + bias.double()).cpu().numpy(), residual.cpu().double().numpy()
    )
    return calls


def gated_on_gpu(shape: tuple[int, ...], dtype: Any) -> Calls:
    """Return the calls of a gated layer; weights are stored as in `torch.nn.Linear`, (N, K)."""
    import torch

    functional = torch.nn.functional
    x, gate, up = (torch.from_numpy(one).cuda().to(dtype) for one in gated_drawn(shape))
    ours = functools.partial(tw.gated_matmul, x, gate.T, up.T)

    def steps() -> Any:
        return functional.silu(functional.linear(x, gate)) * functional.linear(x, up)

    rows = slice(None, None, max(shape[0] // 64, 1))
    wide = x[rows].double()
    want = functional.silu(wide @ gate.double().T) * (wide @ up.double().T)
    near = 2.0 ** (-7 if dtype == torch.bfloat16 else -10) * (1 + want.abs())
    assert bool(((ours()[rows].double() - want).abs() < near).all()), "an element is wrong"

    def alone() -> Any:
        return functional.linear(x, gate), functional.linear(x, up)

    return {OURS: ours, STEPS: steps, PRODUCTS: alone}


def gated_drawn(shape: tuple[int, ...]) -> list[np.ndarray[Any, Any]]:
    """Draw x (M, K), and two weights (N, K), in f32."""
    m, n, k = shape
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal((n, k), np.float32) / np.float32(np.sqrt(k)) for _ in range(2))
    return [rng.standard_normal((m, k), np.float32), *weights]


def on_cpu(what: str, shape: tuple[int, ...]) -> Calls:
    """Do the same with NumPy in f32."""
    if what in (ADAPTER, NORM):
        return layers_on_cpu(what, shape)
    if what == GATED:
        x, gate, up = gated_drawn(shape)
        ours = functools.partial(tw.gated_matmul, x, gate.T, up.T, target="cpu")

        def steps() -> Any:
            before = x @ gate.T
            return before / (1 + np.exp(-before)) * (x @ up.T)

        assert np.abs(ours() - steps()).max() < 1e-4, "an element is wrong"
        return {OURS: ours, STEPS: steps, PRODUCTS: lambda: (x @ gate.T, x @ up.T)}
    x, w, bias, residual = drawn(shape).values()
    wide = x.astype(np.float64) @ w.T
    if what == LOGITS:
        ours = functools.partial(tw.reduced_matmul, x, w.T, ("max", "logsumexp"), target="cpu")

        def reduced() -> Any:
            logits = x @ w.T
            high = logits.max(1)
            return high, np.log(np.exp(logits - high[:, None]).sum(1)) + high

        for made, want in zip(ours(), (wide.max(1), np.log(np.exp(wide).sum(1))), strict=True):
            assert np.abs(made - want).max() < 1e-4, "a reduction is wrong"
        return {OURS: ours, STEPS: reduced, PRODUCT: lambda: x @ w.T}
    out, rng = np.full(shape[:2], np.nan, np.float32), np.random.default_rng(SEED)
    words: dict[str, Any] = {"bias": bias, "residual": residual, "target": "cpu"}
    calls: Calls = {
        OURS: functools.partial(tw.einsum, "mk,nk->mn", x, w, out, dropout=SHARE, seed=SEED, **words),
        WITHOUT: functools.partial(tw.einsum, "mk,nk->mn", x, w, out, **words),
        STEPS: lambda: (
            (x @ w.T + bias) * (rng.random(shape[:2], np.float32) >= SHARE) / (1 - SHARE) + residual
        ),
        PRODUCT: lambda: x @ w.T + bias,
    }
    calls[OURS]()
    compared(out, wide + bias, residual)
    return calls


LOWER, TRIANGULAR, GRAM = "lower triangle", "triangular operand", "gram"
SIDES = {"cuda": (2048, 4096, 8192), "cpu": (1536,)}
MASKED = {
    target: [(what, (side,) * 3) for side in sides for what in (LOWER, TRIANGULAR, GRAM)]
    for target, sides in SIDES.items()
}


@tw.kernel(A="M K", B="N K", C="M N")
def lower_triangle(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.where(tw.positions(m)[:, None] >= tw.positions(n), acc, 0)


@tw.kernel(A="M K", B="N K", C="M N")
def triangular_operand(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += tw.where(tw.positions(k) <= tw.positions(m)[:, None], A[m, k], 0) @ B[n, k].T
        C[m, n] = acc


def masked(what: str, shape: tuple[int, int, int], target: str) -> Calls:
    """A product of which a mask leaves out tiles, and the whole product: bf16 on GPUs, f32 on CPUs."""
    m, n, k = shape
    draw = np.random.default_rng(SEED)
    host = [draw.standard_normal(size).astype(np.float32) for size in ((m, k), (n, k))]
    if target == "cuda":
        import torch

        x, y = (torch.asarray(one).to("cuda", torch.bfloat16) for one in host)
        out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
        wide, tril, product = [one.double() for one in (x, y)], torch.tril, torch.mm
        near = 2.0**-7
    else:
        x, y = host
        out = np.full((m, n), np.nan, np.float32)
        wide, tril, product = [one.astype(np.float64) for one in (x, y)], np.tril, np.matmul
        near = 2.0**-20
    if what == GRAM:
        ours, whole = functools.partial(tw.gram, x, out, target=target), lambda: product(x, x.T)
        factors = wide[0], wide[0]
    else:
        kernel = lower_triangle if what == LOWER else triangular_operand
        ours, whole = functools.partial(kernel, x, y, out, target=target), lambda: product(x, y.T)
        factors = (tril(wide[0]) if what == TRIANGULAR else wide[0]), wide[1]
    exact, bound = factors[0] @ factors[1].T, near * (abs(factors[0]) @ abs(factors[1]).T)
    exact = tril(exact) if what == LOWER else exact
    ours()
    made = out.double() if target == "cuda" else out
    assert bool((abs(made - exact) <= bound).all()), "an element is wrong"
    return {OURS: ours, PRODUCT: whole}


def compared(made: Any, sums: Any, residual: Any) -> None:
    """Check that Philox's elements are dropped, and that all others are within the bound."""
    kept = tw.testing.philox(np.arange(sums.size).reshape(sums.shape), SEED) >= round(SHARE * 2**32)
    exact = np.where(kept, sums / (1 - SHARE), 0) + residual
    assert np.array_equal(made[~kept], residual[~kept]), "something else is dropped"
    assert (np.abs(made - exact) < 2e-3 * (1 + np.abs(exact))).all(), "an element is wrong"


def main() -> None:
    parser: argparse.ArgumentParser = arguments(__doc__)
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    known = dict.fromkeys(what for what, _ in ON_GPU)
    parser.add_argument("--only", nargs="+", choices=known, default=list(known), help="cases; default: all")
    parser.add_argument("--masked", action="store_true", help="masks that leave out tiles instead")
    asked = parser.parse_args()
    cases, made = (ON_GPU, on_gpu) if asked.target == "cuda" else (ON_CPU, on_cpu)
    small = QUICK
    if asked.masked:
        cases, made = MASKED[asked.target], functools.partial(masked, target=asked.target)
        small = [(what, (256, 256, 64)) for what in (LOWER, TRIANGULAR, GRAM)]
    lines, rows = [], []
    for what, shape in small if asked.quick else cases:
        if not asked.masked and what not in asked.only:
            continue
        calls = made(what, shape)
        taken = measure(calls, asked.target, effort=effort(asked))
        problem = f"{what} {'x'.join(map(str, shape))}"
        for call in calls:
            us = taken[call].us.median
            speed = "" if call == OURS else f"{taken.speed(OURS, call)}"
            lines.append((problem, call, f"{us:.1f}", speed))
            rows.append({"problem": problem, "call": call, "us": us, "speed": speed})
        if asked.target == "cuda" and what in (ADAPTER, NORM):
            for call in (one for one in (OURS, IN_ONE, KNOWN) if one in calls):
                limit = limit_us(what, shape, call)
                share = f"{limit / taken[call].us.median:.3f} of it is reached by {call}"
                lines.append((problem, LIMIT, f"{limit:.1f}", share))
                rows.append({"problem": problem, "call": f"{LIMIT} of {call}", "us": limit, "speed": share})
        keep(asked, "epilogues", asked.target, rows)
    print(table(("(M, N, K)", "call", "us", f"{OURS} is faster by [95 %]"), lines))


if __name__ == "__main__":
    main()
