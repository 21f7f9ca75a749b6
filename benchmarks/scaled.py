"""fp16 by 8-bit weights with scales and bias on a GPU: one kernel, three passes, and cuBLAS on fp16.

    python benchmarks/scaled.py [--quick] [--forms] [--json results/scaled.json]

Each call is compared with f64 first. "three passes" does without such a kernel: it converts weights to fp16,
multiplies by cuBLAS, and then scales the product and adds the bias. "cuBLAS fp16 alone" only multiplies, by
weights stored in fp16. fp8 by fp8 is compared with `torch._scaled_mm`: by tensor, by row, and by blocks of
(1, 128) of A and (128, 128) of B if PyTorch supports them. Blocks are also compared with DeepGEMM if it is
installed (`import deep_gemm`). Device time, in turns, with a cold second-level cache.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from reporting import arguments, effort, keep, table

import tilewright as tw
from tilewright.errors import TilewrightError
from tilewright.ops.products import BLOCK, scaled, scaled_by_blocks
from tilewright.ops.scales import multiplied_as
from tilewright.schedule.choice import proposals
from tilewright.tune.measure import measure

OURS, PASSES, ALONE, TORCH = "tw.scaled_mm", "three passes", "cuBLAS fp16 alone", "torch._scaled_mm"
DEEPGEMM = "DeepGEMM"
FEW = [(m, n, k) for n, k in ((4096, 4096), (14336, 4096), (4096, 14336)) for m in (1, 16, 64)]
MANY = [(256, 4096, 4096), (1024, 4096, 4096), (4096, 4096, 4096), (8192, 8192, 8192)]
SQUARE = [(1024, 4096, 4096), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192)]
WEIGHTS = {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2, "i8": torch.int8}
MOST_FORMS = 8


def drawn(kind: str, *shape: int) -> torch.Tensor:
    """Draw random numbers of an 8-bit dtype."""
    if kind == "i8":
        return torch.randint(-128, 128, shape, dtype=torch.int8, device="cuda")
    return torch.randn(shape, device="cuda").to(WEIGHTS[kind])


def check(
    made: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    scale: torch.Tensor,
    bias: torch.Tensor,
    name: str,
    roundings: int = 1,
) -> None:
    """Compare every element with f64: exact products, sums in f32, and roundings to the result's dtype.

    fp8 by fp8 keeps 13 bits of partial sums of up to 512 products.
    """
    wide_a, wide_b = (x.float().double() for x in (a, b))
    exact = wide_a @ wide_b * scale.double() + bias.double()
    sizes = wide_a.abs() @ wide_b.abs() * scale.double() + bias.double().abs()
    unit, share = (2.0**-11, 2.0**-16) if a.dtype == torch.float16 else (2.0**-8, 2.0**-11)
    largest = torch.maximum((exact - bias.double()).abs(), exact.abs())
    wrong = (made.double() - exact).abs() > roundings * unit * largest + share * sizes
    assert not bool(wrong.any()), f"{name}: {int(wrong.sum())} elements are wrong"


def forms(given: dict[str, Any], kinds: tuple[str, str]) -> dict[str, Any]:
    """Return proposed schedules, by the rule that proposes them."""
    multiplied = multiplied_as(*(tw.dtype(kind) for kind in kinds))
    terms = frozenset({"scale_a", "scale_b", "bias"} & given.keys())
    kernel = scaled(0).bind(multiplied=multiplied, terms=terms, activation=None)
    vectors = [given["a"][:, 0].float(), given["scale_b"], given["bias"]]  # the scale of A is not read
    asked = kernel.question(given["a"], given["b"], *vectors, given["out"], 1.0, target="cuda")
    assert asked is not None
    found: dict[str, Any] = {}
    for one in proposals(asked):
        if len(found) < MOST_FORMS and one.schedule.staging == "tma":
            found.setdefault(f"{one.rule}: {one.schedule}", one.schedule)
    return found


def mixed(m: int, n: int, k: int, kind: str, along: str, asked: Any) -> dict[str, Callable[[], Any]]:
    """Return the verified calls that multiply fp16 by 8-bit weights."""
    a = torch.randn((m, k), dtype=torch.float16, device="cuda")
    b = drawn(kind, n, k).T if along == "k" else drawn(kind, k, n)
    # Numbers in the range of fp16, in which the passes compute.
    scale_b = ((torch.rand(n, device="cuda") + 0.5) / 64).half().float()
    bias, half = torch.randn(n, device="cuda").half().float(), b.float().half()
    given = {"a": a, "b": b, "scale_b": scale_b, "bias": bias}

    outs = {OURS: torch.full((m, n), float("nan"), dtype=torch.float16, device="cuda")}
    calls: dict[str, Callable[[], Any]] = {OURS: functools.partial(tw.scaled_mm, **given, out=outs[OURS])}
    if asked.forms:
        for name, schedule in forms({**given, "out": outs[OURS]}, ("f16", kind)).items():
            outs[name] = torch.full_like(outs[OURS], float("nan"))
            calls[name] = functools.partial(tw.scaled_mm, **given, out=outs[name], schedule=schedule)
    for name in list(calls):
        try:
            calls[name]()
        except TilewrightError as error:
            print(f"{name}: {error}")
            del calls[name]
            continue
        torch.cuda.synchronize()
        check(outs[name], a, b, scale_b, bias, name)
    product = torch.empty((m, n), dtype=torch.float16, device="cuda")
    passes = three_passes(given)
    check(passes(), a, b, scale_b, bias, PASSES, roundings=2)
    return {**calls, PASSES: passes, ALONE: functools.partial(torch.mm, a, half, out=product)}


def three_passes(given: dict[str, Any]) -> Callable[[], torch.Tensor]:
    """Convert weights, multiply, then scale and add the bias in one kernel; all in fp16."""
    scale, bias = given["scale_b"].half(), given["bias"].half()
    return lambda: torch.addcmul(bias, torch.mm(given["a"], given["b"].half()), scale)


def narrow(m: int, n: int, k: int, by: str) -> dict[str, Callable[[], Any]]:
    """Return the verified calls that multiply fp8 by fp8."""
    a, b = drawn("f8e4m3", m, k), drawn("f8e4m3", n, k).T
    rows = (m, 1) if by == "row" else (1, 1)
    columns = (1, n) if by == "row" else (1, 1)
    scale_a, scale_b = (torch.rand(shape, device="cuda") + 0.5 for shape in (rows, columns))
    out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
    scales = {"scale_a": scale_a, "scale_b": scale_b}
    calls: dict[str, Callable[[], Any]] = {
        OURS: functools.partial(tw.scaled_mm, a, b, out, **scales),
        TORCH: functools.partial(torch._scaled_mm, a, b, **scales, out_dtype=torch.bfloat16),
    }
    for name, call in calls.items():
        made = call()
        torch.cuda.synchronize()
        check(made, a, b, scale_a * scale_b, torch.zeros(1, device="cuda"), name)
    return calls


def by_blocks(m: int, n: int, k: int, asked: Any) -> dict[str, Callable[[], Any]]:
    """Return the verified calls that multiply fp8 by fp8 with block scales.

    Scales of A are column-major; those of B are stored for one block of columns after the other.
    """
    a, b = drawn("f8e4m3", m, k), drawn("f8e4m3", n, k).T
    scale_a = (torch.rand((k // BLOCK, m), device="cuda") + 0.5).T
    scale_b = (torch.rand((n // BLOCK, k // BLOCK), device="cuda") + 0.5).T
    scales = {"scale_a": scale_a, "scale_b": scale_b}
    wide_b = b.float().double() * scale_b.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    wide = a.float().double() * scale_a.repeat_interleave(BLOCK, 1), wide_b
    one = torch.ones(1, device="cuda")
    out = torch.full((m, n), float("nan"), dtype=torch.bfloat16, device="cuda")
    calls: dict[str, Callable[[], Any]] = {
        OURS: functools.partial(tw.scaled_mm, a, b, out, **scales),
        TORCH: functools.partial(torch._scaled_mm, a, b, **scales, out_dtype=torch.bfloat16),
    }
    words = {"terms": frozenset(scales), "activation": None, "shared": (1, BLOCK)}
    kernel = scaled_by_blocks(0).bind(multiplied=tw.f8e4m3, **words)
    question = kernel.question(a, b, scale_a, scale_b, scale_a[:, 0], out, 1.0, target="cuda")
    for one_form in proposals(question) if asked.forms and question is not None else ():
        if len(calls) < 2 + MOST_FORMS and one_form.schedule.staging == "tma":
            name = f"{one_form.rule}: {one_form.schedule}"
            schedule = one_form.schedule
            calls[name] = functools.partial(tw.scaled_mm, a, b, out, **scales, schedule=schedule)
    try:
        calls[DEEPGEMM] = by_deepgemm(a, b, scale_a, scale_b, out)
    except (ImportError, AssertionError, RuntimeError) as error:
        print(f"{DEEPGEMM}: {error}")
    for name in list(calls):
        try:
            out.fill_(float("nan"))
            made = calls[name]()
        except (RuntimeError, TypeError, ValueError, TilewrightError) as error:
            print(f"{name}: {error}")
            del calls[name]
            continue
        torch.cuda.synchronize()
        check(made, *wide, one, torch.zeros(1, device="cuda"), name)
    return calls


def by_deepgemm(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out: torch.Tensor
) -> Callable[[], torch.Tensor]:
    """Return DeepGEMM's product of the same arrays; its form of A's scales is made before, not in each call.

    This form is column-major, with columns padded to 16 bytes.  DeepGEMM takes B and its scales transposed.

    Raises:
        ImportError: DeepGEMM is not installed.
    """
    import deep_gemm

    of_a = a, deep_gemm.get_mn_major_tma_aligned_tensor(scale_a)
    of_b = b.T, scale_b.T

    def call() -> torch.Tensor:
        deep_gemm.fp8_gemm_nt(of_a, of_b, out)
        return out

    return call


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--forms", action="store_true", help="also measure the next proposed schedules")
    parser.add_argument("--only", default="", help="problems whose names contain this")
    asked = parser.parse_args()
    problems: dict[str, tuple[Callable[[], dict[str, Callable[[], Any]]], tuple[int, int, int]]] = {}
    for shape in FEW[1:2] if asked.quick else [*FEW, *MANY]:
        for kind, along in (("f8e4m3", "k"), ("i8", "k"), ("f8e4m3", "n")):
            name = f"f16 x {kind}, contiguous along {along}"
            problems[f"{name} {shape}"] = functools.partial(mixed, *shape, kind, along, asked), shape
    for shape in SQUARE[1:2] if asked.quick else SQUARE:
        for by in ("tensor", "row"):
            problems[f"f8e4m3 x f8e4m3 by {by} {shape}"] = functools.partial(narrow, *shape, by), shape
        problems[f"f8e4m3 x f8e4m3 by block {shape}"] = functools.partial(by_blocks, *shape, asked), shape
    lines, rows = [], []
    for name, (made, shape) in problems.items():
        if asked.only not in name:
            continue
        torch.manual_seed(0)
        calls = made()
        taken = measure(calls, "cuda", effort=effort(asked))
        flops = 2 * shape[0] * shape[1] * shape[2]
        for call in calls:
            us = taken[call].us.median
            speed = "" if call == OURS else f"{taken.speed(OURS, call)}"
            lines.append((name, call, f"{us:.1f}", f"{flops / us / 1e6:.0f}", speed))
            row = {"problem": name, "call": call, "us": us, "speed": speed}
            version = {"version": sys.modules["deep_gemm"].__version__} if call == DEEPGEMM else {}
            rows.append(row | version)
        keep(asked, "scaled", "cuda", rows)
    head = ("problem", "call", "us", "TFlops", f"{OURS} is faster by [95 %]")
    print(table(head, lines))


if __name__ == "__main__":
    main()
