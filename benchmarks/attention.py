"""`tw.attention` compared with PyTorch's kernels on the GPU, or with NumPy on the CPU, in turns.

    python benchmarks/attention.py [--target cpu] [--quick] [--decode] [--backward] [--varlen] [--rows]
        [--loss] [--examples] [--json FILE]

Each element of each head, ours and PyTorch's, is compared with a softmax in float64.  Our kernel is timed
twice, under two names: the difference between the two is noise.  With ``--examples`` the kernels of examples
09 and 10 are timed as well.  Shapes are batch x heads x heads of keys x queries x keys x head dimension.  If
a case is causal, half of the products are counted.  ``--backward`` times `tw.attention_backward` and the
backward passes of PyTorch's kernels on a GPU; it counts 2.5 times the products of the forward pass.
``--varlen`` times packed sequences of random lengths and FlashAttention's kernel for them.  Shapes are then
sequences x heads x heads of keys x rows of all sequences x the same x head dimension.  ``--rows`` times the
softmax of the rows of a product; shapes are then 1 x 1 x 1 x rows x columns x depth.  ``--loss`` times the
cross-entropy of a linear layer, whose shapes are 1 x 1 x 1 x tokens x words x depth, and records the memory
that each call allocates.
"""

from __future__ import annotations

import functools
import math
import runpy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from gemm_cpu import AGAIN, HEAD, columns, line, speed
from reporting import ROOT, arguments, effort, keep, table

import tilewright as tw
from tilewright import dtypes
from tilewright.dtypes import DType, f32
from tilewright.errors import TilewrightError
from tilewright.testing import softmax_attention
from tilewright.tune.measure import measure
from tilewright.tune.trial import OURS

EXAMPLES = {
    "examples/09": runpy.run_path(str(ROOT / "examples" / "09_attention.py"))["bound"],
    "examples/10": runpy.run_path(str(ROOT / "examples" / "10_hopper_attention.py"))["bound"],
}
PEERS = {"torch (cuDNN)": "CUDNN_ATTENTION", "torch (flash)": "FLASH_ATTENTION"}
Case = tuple[str, tuple[int, int, int, int, int, int], bool]
"""Dtype, shape, and whether the case is causal."""

GPU_ONLY = {
    "backward": "attention backward",
    "varlen": "packed attention",
    "rows": "softmax of rows",
    "loss": "cross-entropy",
}
"""Options that need a GPU, and what they time."""

LENGTHS = [(4, 16, 1024), (4, 16, 2048), (4, 16, 4096), (1, 16, 16384)]
"""Batches, heads, queries and keys."""

DECODED = [
    (1, 1, 4096),
    (1, 1, 32768),
    (1, 1, 131072),
    (8, 1, 8192),
    (32, 1, 4096),
    (1, 16, 32768),
    (8, 4, 16384),
]
"""Batches, queries and keys of rows that decode, with 32 heads that share 8 heads of keys."""


VARLEN = [(16, 16, 16, 32768), (8, 16, 4, 16384), (64, 16, 16, 32768)]
"""Sequences, heads, heads of keys, and rows of all sequences."""


def lengths(count: int, rows: int) -> np.ndarray[Any, Any]:
    """Return random lengths of sequences with a given sum; some are short, and few are empty."""
    shares = np.random.default_rng(count).exponential(size=count)
    ends = np.rint(np.cumsum(shares) / shares.sum() * rows).astype(np.int64)
    return np.diff(ends, prepend=0)


def pairs(asked: Any, shape: tuple[int, ...]) -> int:
    """Return the number of pairs of a query and a key, of one head of each batch."""
    if asked.varlen:
        return int((lengths(shape[0], shape[3]) ** 2).sum())
    return shape[0] * shape[3] * shape[4]


ROWS = [
    (2048, 2048, 1024),
    (16384, 1024, 1024),
    (16384, 2048, 1024),
    (16384, 8192, 1024),
    (16384, 8192, 4096),
]
"""Rows, columns and depth of the softmax of a product."""


LOSSES = [(4096, 32000, 4096), (4096, 128256, 4096), (512, 128256, 4096)]
"""Tokens, words and depth of the cross-entropy of a linear layer."""


@tw.kernel(X="M K", W="N K", word="M", loss="M")
def cross_entropy(X: Any, W: Any, word: Any, loss: Any) -> None:
    """``loss = log(sum(exp(X Wᵀ))) - (X Wᵀ)[word]`` for each row."""
    for m in tw.tiles(loss):
        s = X[m] @ W.T
        top = s.max(axis=1)
        hit = tw.where(tw.positions(s) == word[m][:, None], s, 0.0).sum(axis=1)
        loss[m] = tw.log(tw.exp(s - top[:, None]).sum(axis=1)) + top - hit


@tw.kernel(X="M K", W="K N", Y="M N")
def softmax_of_rows(X: Any, W: Any, Y: Any) -> None:
    """``Y = softmax(X W)`` over whole rows."""
    for m, n in tw.tiles(Y):
        Y[m, n] = tw.softmax(X[m] @ W)


def cases(asked: Any) -> Iterator[Case]:
    """Return the cases: every head dimension at every length, and shared heads of keys at one length."""
    if asked.backward:
        for name, depth in (("f16", 64), ("bf16", 128)):
            shapes = [(b, h, h, n, n) for b, h, n in LENGTHS] + [(4, 16, 4, 4096, 4096)]
            for shape in [(1, 4, 2, 300, 500)] if asked.quick else shapes:
                for causal in (False, True):
                    yield name, (*shape, depth), causal
        return
    if asked.rows or asked.loss:
        shapes = LOSSES if asked.loss else ROWS
        for rows, columns, depth in [(300, 520, 200)] if asked.quick else shapes:
            yield "bf16", (1, 1, 1, rows, columns, depth), False
        return
    if asked.varlen:
        for name, depth in (("f16", 64), ("bf16", 128)):
            for count, heads, shared, rows in [(5, 4, 2, 700)] if asked.quick else VARLEN:
                for causal in (False, True):
                    yield name, (count, heads, shared, rows, rows, depth), causal
        return
    if asked.decode:
        for name, depth in (("f16", 64), ("bf16", 128)):
            for batch, queries, keys in DECODED[:1] if asked.quick else DECODED:
                yield name, (batch, 32, 8, queries, keys, depth), False
        return
    if asked.target == "cpu":
        shapes = [(1, 2, 1, 130, 200)] if asked.quick else [(1, 8, 8, 512, 512), (1, 8, 2, 2048, 2048)]
        depths = [("f16", 64), ("bf16", 128)]
    else:
        shapes = [(b, h, h, n, n) for b, h, n in LENGTHS] + [(4, 16, 4, 4096, 4096), (4, 16, 2, 1024, 1024)]
        shapes = [(1, 4, 2, 300, 500)] if asked.quick else shapes
        depths = [("f16", 64), ("bf16", 96), ("bf16", 128), ("bf16", 192), ("bf16", 256)]
    for name, depth in depths:
        for shape in shapes:
            for causal in (False, True):
                if shape[1] == shape[2] or depth in (64, 128) or asked.quick:
                    yield name, (*shape, depth), causal


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--decode", action="store_true", help="few queries and many keys instead")
    parser.add_argument("--backward", action="store_true", help="gradients, on a GPU")
    parser.add_argument("--varlen", action="store_true", help="packed sequences, on a GPU")
    parser.add_argument("--rows", action="store_true", help="the softmax of a product, on a GPU")
    parser.add_argument("--loss", action="store_true", help="the cross-entropy of a linear layer, on a GPU")
    parser.add_argument("--examples", action="store_true", help="also time examples 09 and 10")
    asked = parser.parse_args()
    for name in GPU_ONLY:
        if getattr(asked, name) and asked.target != "cuda":
            parser.error(f"--{name} needs --target cuda")
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for name, shape, causal in cases(asked):
        try:
            rows.append(problem(asked, name, shape, causal=causal))
            print(line(rows[-1]), flush=True)
        except (TilewrightError, AssertionError, RuntimeError) as error:
            kind = "causal" if causal else "full"
            failed.append({"dtype": name, "shape": list(shape), "layout": kind, "failed": str(error)})
            print(f"FAILED {failed[-1]}", flush=True)
        # Keep finished rows, even if a time limit ends this process.
        kind = next((f"_{one}" for one in GPU_ONLY if getattr(asked, one)), "")
        keep(asked, f"attention{kind}_{asked.target}", asked.target, [*rows, *failed])
    print()
    print(table((*HEAD, "of the best"), [[*columns(found), f"{found['of_best']:.3f}"] for found in rows]))
    sys.exit(f"{len(failed)} problems failed" if failed else 0)


def problem(asked: Any, name: str, shape: tuple[int, ...], *, causal: bool) -> dict[str, Any]:
    """Verify a problem and its rivals, and time them in turns."""
    _, heads, shared, _, _, depth = shape
    element, scale = dtypes.dtype(name), 1 / math.sqrt(depth)
    call: Callable[[], object]
    if asked.backward:
        call, check, rivals = gradients_on_gpu(element, shape, causal=causal)
    elif asked.varlen:
        call, check, rivals = packed_on_gpu(element, shape, causal=causal)
    elif asked.rows or asked.loss:
        call, check, rivals = (loss_on_gpu if asked.loss else rows_on_gpu)(element, shape)
    else:
        make = on_gpu if asked.target == "cuda" else on_cpu
        arrays, check, rivals = make(element, shape, causal=causal)
        q, k, v, o = arrays
        call = functools.partial(tw.attention, q, k, v, causal=causal, out=o)
    call()
    of_bound, wrong = check(), {}
    calls: dict[str, Callable[[], object]] = {OURS: call, AGAIN: call}
    for label, rival in rivals.items():
        try:  # PyTorch decides at the call which kernels it has
            check(rival())
            calls[label] = rival
        except (RuntimeError, AssertionError) as error:
            wrong[label] = str(error).partition("\n")[0]
    peers = [label for label in calls if label not in (OURS, AGAIN)]
    if (
        asked.examples
        and not any(getattr(asked, one) for one in GPU_ONLY)
        and heads == shared
        and depth in (64, 128)
        and asked.target == "cuda"
    ):
        for label, bound in EXAMPLES.items():
            kernel = bound(element, depth, causal=causal)
            calls[label] = functools.partial(kernel, *arrays, scale, 0, target="cuda")
            o.fill_(math.nan)
            calls[label]()
            of_bound = max(of_bound, check())
    taken = measure(calls, asked.target, effort=effort(asked))
    products = (10 if asked.backward else 2 if asked.rows or asked.loss else 4) * (0.5 if causal else 1)
    flops = products * heads * pairs(asked, shape) * depth
    speeds = {label: speed(taken, OURS, label) for label in calls if label != OURS}
    what = next((GPU_ONLY[one] for one in GPU_ONLY if getattr(asked, one)), "attention")
    return {
        "name": f"{what}<{asked.target}, {name}, {'x'.join(map(str, shape))}>",
        "dtype": name,
        "shape": list(shape),
        "layout": "causal" if causal else "full",
        "target": asked.target,
        "error_of_bound": of_bound,
        "gflops": {timing.name: flops / timing.us.median / 1e3 for timing in taken.timings},
        "speed": speeds,
        "of_best": min((speeds[label][0] for label in peers), default=math.nan),
        "without": wrong,
        "allocated_bytes": {label: allocated(one) for label, one in calls.items()} if asked.loss else {},
        **taken.record(),
    }


def relative(element: DType, keys: int) -> float:
    """Return the error bound of an average of values of size 1: weights rounded to the dtype, sums in f32."""
    return 2 * (element.unit_roundoff + (2 * keys + 2**8) * f32.unit_roundoff)


def on_gpu(element: DType, shape: tuple[int, ...], *, causal: bool) -> tuple[Any, ...]:
    """Return random tensors on the GPU, a function that compares all heads, and PyTorch's kernels."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    batch, heads, shared, queries, keys, depth = shape
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[element.name]
    q, k, v = (
        torch.randn((batch, h, n, depth), dtype=kind, device="cuda")
        for h, n in ((heads, queries), (shared, keys), (shared, keys))
    )
    o = torch.full_like(q, float("nan"))

    def check(found: Any = None) -> float:
        given, worst, room = o if found is None else found, 0.0, relative(element, keys)
        for b, h in np.ndindex(batch, heads):
            g = h * shared // heads
            for start in range(0, queries, 2048):
                rows = slice(start, start + 2048)
                scores = q[b, h, rows].double() @ k[b, g].double().T / math.sqrt(depth)
                if causal:
                    i = torch.arange(queries, device="cuda")[rows, None]
                    scores.masked_fill_(torch.arange(keys, device="cuda") > i, -math.inf)
                weights = torch.softmax(scores, dim=-1)
                wanted = weights @ v[b, g].double()
                most = room * (weights @ v[b, g].double().abs()) + element.unit_roundoff * wanted.abs() + 1e-7
                off = (given[b, h, rows].double() - wanted).abs() / most
                worst = max(worst, float(off.nan_to_num(1e9).max()))
        assert worst <= 1, f"off by {worst:.3g} of the bound"
        return worst

    def rival(backend: Any) -> Any:
        with sdpa_kernel(backend):
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=heads != shared
            )

    rivals = {label: functools.partial(rival, getattr(SDPBackend, name)) for label, name in PEERS.items()}
    return (q, k, v, o), check, rivals


def packed_on_gpu(element: DType, shape: tuple[int, ...], *, causal: bool) -> tuple[Any, ...]:
    """Return our call on packed sequences, a function that compares all of them, and FlashAttention's kernel.

    With a mask the last query of a sequence sees its last key, as in FlashAttention.
    """
    import torch

    count, heads, shared, rows, _, depth = shape
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[element.name]
    ends = np.cumsum([0, *lengths(count, rows)])
    longest = int(np.diff(ends).max())
    offsets = torch.tensor(ends, dtype=torch.int32, device="cuda")
    q, k, v = (torch.randn((rows, h, depth), dtype=kind, device="cuda") for h in (heads, shared, shared))
    o = torch.full_like(q, float("nan"))
    words = {"causal": True, "diagonal": "last"} if causal else {}
    call = functools.partial(tw.attention, q, k, v, q_offsets=offsets, out=o, **words)

    def check(found: Any = None) -> float:
        given, worst, room = o if found is None else found, 0.0, relative(element, longest)
        for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            for h in range(heads):
                kh, vh = (x[first:last, h * shared // heads].double() for x in (k, v))
                for start in range(first, last, 2048):
                    stop = min(start + 2048, last)
                    scores = q[start:stop, h].double() @ kh.T / math.sqrt(depth)
                    if causal:
                        i = torch.arange(start - first, stop - first, device="cuda")[:, None]
                        scores.masked_fill_(torch.arange(last - first, device="cuda") > i, -math.inf)
                    weights = torch.softmax(scores, dim=-1)
                    wanted = weights @ vh
                    most = room * (weights @ vh.abs()) + element.unit_roundoff * wanted.abs() + 1e-7
                    off = (given[start:stop, h].double() - wanted).abs() / most
                    worst = max(worst, float(off.nan_to_num(1e9).max()))
        assert worst <= 1, f"off by {worst:.3g} of the bound"
        return worst

    wide = [x.repeat_interleave(heads // shared, 1) if heads != shared else x for x in (k, v)]

    def rival() -> Any:
        return torch.ops.aten._flash_attention_forward(
            q, *wide, offsets, offsets, longest, longest, 0.0, causal, False, scale=depth**-0.5
        )[0]

    return call, check, {"torch (flash)": rival}


def gradients_on_gpu(element: DType, shape: tuple[int, ...], *, causal: bool) -> tuple[Any, ...]:
    """Return our backward pass on random tensors, a function that compares all heads, and PyTorch's kernels.

    The bound is that of the page on attention.  PyTorch's kernels, whose ``out`` is rounded otherwise, have
    four times as much room.
    """
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    batch, heads, shared, queries, keys, depth = shape
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[element.name]
    q, k, v, dout = (
        torch.randn((batch, h, n, depth), dtype=kind, device="cuda")
        for h, n in ((heads, queries), (shared, keys), (shared, keys), (heads, queries))
    )
    out, lse = tw.attention(q, k, v, causal=causal, return_lse=True)
    made = tuple(torch.full_like(one, float("nan")) for one in (q, k, v))
    results = dict(zip(("dq", "dk", "dv"), made, strict=True))
    call = functools.partial(tw.attention_backward, q, k, v, out, lse, dout, causal=causal, **results)
    scale, u, w = depth**-0.5, f32.unit_roundoff, element.unit_roundoff

    def compared(found: Any, right: Any, room: Any) -> float:
        off = (found.double() - right).abs() / (room + 2 * w * right.abs() + 1e-7)
        return float(off.nan_to_num(1e9).max())

    def check(found: Any = None) -> float:
        dq, dk, dv = made if found is None else found
        worst, wider = 0.0, 1 if found is None else 4
        terms = 2 * (max(keys, queries * heads // shared) + 1) * u
        for b, g in np.ndindex(batch, shared):
            kg, vg = k[b, g].double(), v[b, g].double()
            sums = [torch.zeros_like(kg) for _ in range(4)]
            for h in range(g * heads // shared, (g + 1) * heads // shared):
                for start in range(0, queries, 2048):
                    rows = slice(start, start + 2048)
                    qh, oh, gh = (one[b, h, rows].double() for one in (q, out, dout))
                    top = lse[b, h, rows, None].double()
                    s = scale * qh @ kg.T
                    off = 2 * (depth + 1) * u * scale * (qh.abs() @ kg.abs().T) + 7 * u * (
                        s.abs() + top.abs()
                    )
                    p = torch.exp(s - top)
                    if causal:
                        i = torch.arange(queries, device="cuda")[rows, None]
                        p.masked_fill_(torch.arange(keys, device="cuda") > i, 0.0)
                    inner = gh @ vg.T - (gh * oh).sum(1, keepdim=True)
                    sizes = gh.abs() @ vg.abs().T + (gh * oh).abs().sum(1, keepdim=True)
                    ds = p * inner
                    moved = p * (inner.abs() * (torch.expm1(off) + 8 * u) + 2 * (depth + 2) * u * sizes)
                    moved += (w + terms) * ds.abs() + 2.0**-24
                    of_p = p * (torch.expm1(off) + 4 * u + w + terms) + 2.0**-24
                    room = wider * scale * moved @ kg.abs()
                    worst = max(worst, compared(dq[b, h, rows], scale * ds @ kg, room))
                    more = (scale * ds.T @ qh, scale * moved.T @ qh.abs(), p.T @ gh, of_p.T @ gh.abs())
                    sums = [one + other for one, other in zip(sums, more, strict=True)]
            worst = max(worst, compared(dk[b, g], sums[0], wider * sums[1]))
            worst = max(worst, compared(dv[b, g], sums[2], wider * sums[3]))
        assert worst <= 1, f"off by {worst:.3g} of the bound"
        return worst

    leaves, graphs = tuple(one.clone().requires_grad_() for one in (q, k, v)), dict[Any, Any]()

    def rival(backend: Any) -> Any:
        if backend not in graphs:
            with sdpa_kernel(backend):
                graphs[backend] = torch.nn.functional.scaled_dot_product_attention(
                    *leaves, is_causal=causal, enable_gqa=heads != shared
                )
        return torch.autograd.grad(graphs[backend], leaves, dout, retain_graph=True)

    rivals = {label: functools.partial(rival, getattr(SDPBackend, name)) for label, name in PEERS.items()}
    return call, check, rivals


def rows_on_gpu(element: DType, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the softmax of a product of random tensors, a function that compares all rows, and PyTorch's.

    A score is off by ``x = 2 (K + 1) u sum |x w| + 8 u |s|``; an element by that of its score and the largest
    of its row, by a sum of N terms, and by rounding.  PyTorch rounds scores, which adds ``2 w |s|`` to x.
    """
    import torch

    _, _, _, rows, columns, depth = shape
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[element.name]
    x = torch.randn((rows, depth), dtype=kind, device="cuda")
    w = torch.randn((depth, columns), dtype=kind, device="cuda") / math.sqrt(depth)
    y = torch.full((rows, columns), float("nan"), dtype=kind, device="cuda")

    def check(found: Any = None) -> float:
        given, worst, u = y if found is None else found, 0.0, f32.unit_roundoff
        for start in range(0, rows, 2048):
            part = x[start : start + 2048].double()
            s = part @ w.double()
            off = 2 * (depth + 1) * u * (part.abs() @ w.double().abs()) + 8 * u * s.abs()
            off = off if found is None else off + 2 * element.unit_roundoff * s.abs()
            off = off + off.max(dim=1, keepdim=True).values + 2 * (columns + 16) * u
            wanted = torch.softmax(s, dim=1)
            room = wanted * (torch.expm1(off) + 2 * element.unit_roundoff) + 2.0**-24
            wrong = (given[start : start + 2048].double() - wanted).abs() / room
            worst = max(worst, float(wrong.nan_to_num(1e9).max()))
        assert worst <= 1, f"off by {worst:.3g} of the bound"
        return worst

    call = functools.partial(softmax_of_rows, x, w, y)
    return call, check, {"torch": lambda: torch.softmax(x @ w, dim=-1)}


def loss_on_gpu(element: DType, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return the cross-entropy of random tensors, a function that compares all rows, and PyTorch's.

    The bound is twice that of a score, as in `rows_on_gpu`, and that of a sum of N terms.  PyTorch rounds its
    scores and losses.
    """
    import torch

    _, _, _, rows, columns, depth = shape
    kind = {"f16": torch.float16, "bf16": torch.bfloat16}[element.name]
    x = torch.randn((rows, depth), dtype=kind, device="cuda")
    w = torch.randn((columns, depth), dtype=kind, device="cuda") / math.sqrt(depth)
    word = torch.randint(columns, (rows,), dtype=torch.int32, device="cuda")
    loss = torch.full((rows,), float("nan"), device="cuda")
    right, most, wide = [], [], w.double()
    for start in range(0, rows, 512):
        part = x[start : start + 512].double()
        s = part @ wide.T
        off = 2 * (depth + 1) * f32.unit_roundoff * (part.abs() @ wide.abs().T)
        off = (off + 8 * f32.unit_roundoff * s.abs()).max(dim=1).values
        words = word[start : start + 512, None].long()
        right.append(torch.logsumexp(s, dim=1) - s.gather(1, words)[:, 0])
        most.append((off, s.abs().max(dim=1).values))
    wanted, (off, largest) = torch.cat(right), map(torch.cat, zip(*most, strict=True))
    del wide

    def check(found: Any = None) -> float:
        given, rounding = (loss, 0.0) if found is None else (found, element.unit_roundoff)
        room = 2 * (off + 2 * rounding * largest) + 2 * (columns + 64) * f32.unit_roundoff
        room = room + 2 * rounding * wanted.abs()
        worst = float(((given.double() - wanted).abs() / room).nan_to_num(1e9).max())
        assert worst <= 1, f"off by {worst:.3g} of the bound"
        return worst

    def rival() -> Any:
        scores = torch.nn.functional.linear(x, w)
        return torch.nn.functional.cross_entropy(scores, word.long(), reduction="none")

    return functools.partial(cross_entropy, x, w, word, loss), check, {"torch": rival}


def allocated(call: Callable[[], object]) -> int:
    """Return the bytes that PyTorch allocates during a call, at most at the same time.

    Our kernels keep the states of parts of a row outside of PyTorch's memory: a few numbers for each.
    """
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated() - before)


def on_cpu(element: DType, shape: tuple[int, ...], *, causal: bool) -> tuple[Any, ...]:
    """Do the same on the CPU; NumPy multiplies in f32, and its inputs are converted beforehand."""
    batch, heads, shared, queries, keys, depth = shape
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal((batch, h, n, depth)).astype(element.numpy)
        for h, n in ((heads, queries), (shared, keys), (shared, keys))
    )
    o, scale = np.full_like(q, np.nan), 1 / math.sqrt(depth)
    each = [np.repeat(x, heads // shared, axis=1) for x in (k, v)]

    def check(found: Any = None) -> float:
        given, shift = o if found is None else found, 0 if causal else None
        wanted = softmax_attention(q, *each, scale, shift)
        averages = softmax_attention(q, each[0], np.abs(each[1]), scale, shift)
        most = relative(element, keys) * averages + element.unit_roundoff * np.abs(wanted) + 1e-7
        worst = float(np.nan_to_num(np.abs(given.astype(np.float64) - wanted) / most, nan=1e9).max())
        assert worst <= 1, f"off by {worst:.3g} of the bound"
        return worst

    wide = [x.astype(np.float32) for x in (q, *each)]
    hidden = ~np.tri(queries, keys, dtype=bool)

    def rival() -> Any:
        scores = (np.float32(scale) * wide[0]) @ wide[1].swapaxes(-1, -2)
        if causal:
            scores[..., hidden] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        return (scores @ wide[2]) / scores.sum(axis=-1, keepdims=True)

    return (q, k, v, o), check, {"NumPy f32": rival}


if __name__ == "__main__":
    main()
