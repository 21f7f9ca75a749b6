"""Attention and the fused GEMMs of the examples, on every target, element by element against float64.

**Bound of attention.**  With ``u`` the unit roundoff of f32 and ``v`` that of the inputs' dtype:

- a score is a sum of D exact products: off by at most ``(D + 1) 2u sum |q k|`` (matrix units cut off what
  sticks out, hence twice); times the scale, that is a relative error of the weight, as is what `exp2` and its
  argument add, ``4u + 3u |argument|``, where an argument of more than 40 belongs to a weight that does not
  matter;
- a weight is rounded to the inputs' dtype before it is multiplied: ``v``;
- both sums have at most N terms and are scaled once for each block of keys: ``(2 N) u`` together;
- an average of values that are off by a relative ``e`` is off by ``2 e`` times the average of ``|values|``;
- the result is rounded to the dtype: ``v |o|``.
"""

from __future__ import annotations

import math
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.references import attention_room
from tilewright.ir.parser import parse_kernel
from tilewright.ir.printer import print_kernel
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda
from tilewright.targets.reference import run
from tilewright.testing import softmax_attention

pytestmark = pytest.mark.in_turns(3)

EXAMPLES = Path(__file__).parents[2] / "examples"
ATTENTION: dict[str, Any] = runpy.run_path(str(EXAMPLES / "09_attention.py"))
FUSED: dict[str, Any] = runpy.run_path(str(EXAMPLES / "08_fused_gemms.py"))
TARGETS = ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
DTYPES = [tw.f16, tw.bf16]
U = tw.f32.unit_roundoff


class Case:
    """Inputs of attention, the results in float64, and the error bounds."""

    def __init__(
        self,
        shape: tuple[int, int, int, int, int],
        element: tw.DType,
        *,
        shift: int | None = None,
        seed: int = 0,
        factor: float = 1.0,
        offset: float = 0.0,
        bound: Callable[..., Any] = ATTENTION["bound"],
        scale: float | None = None,
    ) -> None:
        batch, heads, queries, keys, depth = shape
        rng = np.random.default_rng(seed)
        lengths = (queries, keys, keys)
        self.q, self.k, self.v = (
            rng.standard_normal((batch, heads, n, depth)).astype(element.numpy) for n in lengths
        )
        self.q[...] = (self.q.astype(np.float64) * factor).astype(element.numpy)
        if offset:  # all scores far from 0, and close to each other
            self.q[..., 0], self.k[..., 0] = abs(offset) ** 0.5, math.copysign(abs(offset) ** 0.5, offset)
        self.element, self.shift, self.bound = element, shift, bound
        self.scale = 1 / math.sqrt(depth) if scale is None else scale
        self.o = np.full((batch, heads, queries, depth), np.nan, element.numpy)

    @property
    def kernel(self) -> Any:
        return self.bound(self.element, self.q.shape[-1], causal=self.shift is not None)

    def run(self, target: str) -> np.ndarray:
        arrays = [self.q, self.k, self.v, self.o]
        given = [DeviceArray.of(x) if target == "cuda" else x for x in arrays]
        assert self.kernel(*given, self.scale, self.shift or 0, target=target).target == target
        return given[3].host() if target == "cuda" else self.o

    def expected(self) -> np.ndarray:
        made: np.ndarray = softmax_attention(self.q, self.k, self.v, self.scale, self.shift)
        return made

    def room(self) -> np.ndarray:
        """The bound, element by element."""
        made: np.ndarray = attention_room(self.q, self.k, self.v, self.scale, self.shift)
        return made

    def check(self, found: np.ndarray) -> None:
        error = np.abs(found.astype(np.float64) - self.expected())
        assert (error <= self.room()).all(), f"{(error / self.room()).max()} of the bound"


RAGGED = [
    *((1, 2, 130, 70, 64), (2, 1, 65, 200, 64), (1, 1, 128, 129, 128), (1, 1, 3, 1, 128)),
    *((1, 1, 70, 90, 48), (1, 1, 66, 70, 104)),
]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", DTYPES, ids=str)
@pytest.mark.parametrize("shape", RAGGED, ids=str)
def test_random_data(shape: tuple[int, ...], element: tw.DType, target: str) -> None:
    case = Case(shape, element)
    case.check(case.run(target))


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shift", [0, 70, -40, -500])
@pytest.mark.parametrize("shape", [(1, 2, 150, 220, 64), (1, 1, 140, 100, 128)], ids=str)
def test_causal(shape: tuple[int, ...], shift: int, target: str) -> None:
    """With a negative shift the first queries see no key: their rows are 0, not NaN."""
    case = Case(shape, tw.f16 if shift % 20 else tw.bf16, shift=shift)
    found = case.run(target)
    case.check(found)
    blind = min(max(-shift, 0), shape[2])
    assert (found[:, :, :blind] == 0).all()
    assert (found[:, :, blind:] != 0).any(axis=-1).all()


def test_a_head_dimension_beyond_the_tile_is_refused() -> None:
    with pytest.raises(ValueError, match="head dimension 136: there are tiles for at most 128"):
        ATTENTION["bound"]("f16", 136, causal=False)
    case = Case((1, 1, 5, 6, 80), tw.f16)
    narrow = ATTENTION["bound"]("f16", 64, causal=False)
    with pytest.raises(tw.LaunchError, match="the head dimension exceeds the tile's 64"):
        narrow(case.q, case.k, case.v, case.o, 1.0, 0, target="reference")


@pytest.mark.parametrize("target", TARGETS)
def test_no_keys_at_all(target: str) -> None:
    case = Case((1, 1, 5, 64, 64), tw.f16, shift=-64)
    assert (case.run(target) == 0).all()


HUGE = [
    {"offset": -30000.0},  # every score about -3750
    {"offset": 30000.0},
    {"factor": 300.0},  # scores of thousands, of both signs: one key takes nearly all
    {"factor": 300.0, "scale": 2.0**31},  # of which a rounded product is off by more than any exponent
    {"factor": 300.0, "scale": -(2.0**60)},
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("huge", HUGE, ids=str)
@pytest.mark.parametrize("shift", [None, 100])
def test_huge_scores(huge: dict[str, float], shift: int | None, target: str) -> None:
    case = Case((1, 1, 70, 170, 64), tw.f16, shift=shift, **huge)
    found = case.run(target)
    assert np.isfinite(found.astype(np.float64)).all()
    case.check(found)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scale", [0.0, -0.2])
@pytest.mark.parametrize("shift", [None, 30])
def test_any_scale(scale: float, shift: int | None, target: str) -> None:
    """With scale 0 all keys have the same weight; with a negative scale the least similar keys weigh most."""
    case = Case((1, 2, 70, 170, 64), tw.bf16, shift=shift, scale=scale)
    case.check(case.run(target))


def traced(case: Case) -> Any:
    return case.kernel.trace(case.q, case.k, case.v, case.o, case.scale, case.shift or 0)


def on_reference(text: str, case: Case) -> Any:
    """Run a printed kernel under the checker."""
    arrays = {"Q": case.q, "K": case.k, "V": case.v, "O": case.o}
    return run(parse_kernel(text), arrays, {"shift": case.shift or 0}, {"scale": case.scale})


MUTANTS = {
    "the running maximum starts at 0": ("fill=-3.4028234663852886e+38", "fill=0.0"),
    "the sums are not scaled": ("copy(mul_2, acc)", "copy(acc, acc)"),
    "the sum of weights is not scaled": (
        "elementwise((total, decay, weights_sum,), function='fma')",
        "elementwise((total, weights_sum,), function='add')",
    ),
    "a negative scale is taken as positive": (
        "elementwise((less, neg, query,)",
        "elementwise((less, query, query,)",
    ),
    "the ragged tile is not masked": (
        "elementwise((there, scores, -inf,)",
        "elementwise((there, scores, scores,)",
    ),
    "a row's sum lacks what other threads hold": (
        "weights_sum = reduce(weights, function='sum', dim=1)",
        "weights_sum = reduce(weights, function='min', dim=1)",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_rejected(name: str) -> None:
    offset, scale = (-30000.0 if "maximum" in name else 0.0), (-0.2 if "negative" in name else None)
    case = Case((1, 1, 70, 170, 64), tw.f16, offset=offset, scale=scale)
    text = print_kernel(traced(case))
    on_reference(text, case).raise_if_any()
    case.check(case.o)
    old, new = MUTANTS[name]
    assert text.count(old) == 1, f"{old} occurs {text.count(old)} times"
    on_reference(text.replace(old, new), case)
    with pytest.raises(AssertionError):
        case.check(case.o)


def synchronisation(text: str) -> list[int]:
    """Return the lines of a printed kernel with a barrier or a wait."""
    return [i for i, line in enumerate(text.split("\n")) if line.strip() in ("barrier()", "async_wait()")]


def test_there_is_one_wait_and_one_barrier() -> None:
    assert len(synchronisation(print_kernel(traced(Case((1, 1, 70, 330, 64), tw.f16))))) == 2


@pytest.mark.parametrize("at", range(2))
def test_synchronisation_that_is_missing_is_found(at: int) -> None:
    """Without one of its barriers and waits, the kernel has a finding."""
    case = Case((1, 1, 70, 330, 64), tw.f16)
    text = print_kernel(traced(case))
    lines = text.split("\n")
    del lines[synchronisation(text)[at]]
    assert on_reference("\n".join(lines), case).findings


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("depth", [64, 128])
def test_text_compiles_nearly_without_spills(depth: int, causal: bool) -> None:
    """At a depth of 128 a few addresses of the copies spill; each is read once per tile of keys.

    Both dtypes have texts that differ in the names of types alone: they take turns at the architectures.
    """
    for element, arch in zip(DTYPES, ("sm_90a", "sm_80") if causal else ("sm_80", "sm_90a"), strict=True):
        kernel = traced(Case((1, 1, 16, 16, depth), element, shift=0 if causal else None))
        assert cuda.violations(kernel, arch) == []
        listing = cuda.emit(kernel, arch)
        binary = compile_text(listing.text, arch, "attention")
        most = {64: 0, 128: 112 if causal and arch == "sm_80" else 32}
        assert binary.resources["spill_store_bytes"] <= most[depth]
        assert "warning" not in binary.log
        for instruction in ("ldmatrix.sync.aligned.m8n8.x4.trans", "ex2.approx", "cp.async.cg"):
            assert instruction in listing.text


def test_golden(golden) -> None:
    golden(cuda.emit(traced(Case((1, 1, 16, 16, 64), tw.f16, shift=0)), "sm_80").text, "attention_f16.cu")


def test_kernels_are_short() -> None:
    for name, function in (("09_attention.py", "attention"), ("08_fused_gemms.py", "fused_gemms")):
        lines = (EXAMPLES / name).read_text().split("\n")
        start = next(i for i, line in enumerate(lines) if line.startswith(f"def {function}("))
        stop = next(i for i in range(start + 1, len(lines)) if lines[i] and not lines[i].startswith(" "))
        assert stop - start < 60


# ---------------------------------------------------------------- fused GEMMs


class FusedCase:
    """Inputs of the fused GEMMs, and the error bounds.

    The first product is off by its sum's roundings, and by one to the dtype; the second sum rounds again.
    """

    def __init__(self, shape: tuple[int, int, int, int], element: tw.DType) -> None:
        m, n, k, p = shape
        rng = np.random.default_rng(n)
        self.a, self.b, self.c = (
            rng.standard_normal(e).astype(element.numpy) for e in ((m, k), (n, k), (p, n))
        )
        self.d = np.full((m, p), np.nan, np.float32)
        self.element = element
        self.wide = [x.astype(np.float64) for x in (self.a, self.b, self.c)]
        self.product = self.wide[0] @ self.wide[1].T

    def room(self) -> np.ndarray:
        """The bound, element by element."""
        a, b, c = (np.abs(x) for x in self.wide)
        n, k = b.shape
        v, tiny = self.element.unit_roundoff, float(ml_dtypes.finfo(self.element.numpy).smallest_subnormal)
        of_product = (1 + v) * (k + 1) * 2 * U * a @ b.T + v * np.abs(self.product) + tiny
        made: np.ndarray = of_product @ c.T + (n + 1) * 2 * U * (np.abs(self.product) + of_product) @ c.T
        return made + 1e-30

    def check(self, found: np.ndarray) -> None:
        error = np.abs(found - self.product @ self.wide[2].T)
        assert (error <= self.room()).all(), f"{(error / self.room()).max()} of the bound"


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(70, 72, 40, 130), (64, 64, 32, 128), (33, 129, 70, 17), (1, 1, 1, 1)], ids=str
)
def test_fused_gemms(shape: tuple[int, int, int, int], element: tw.DType, target: str) -> None:
    """The data are random; the first product is rounded once, which changes its elements by ``v`` at most."""
    case = FusedCase(shape, element)
    given = [DeviceArray.of(x) if target == "cuda" else x for x in (case.a, case.b, case.c, case.d)]
    assert FUSED["bound"](element)(*given, target=target).target == target
    case.check(given[3].host() if target == "cuda" else case.d)
    # A lost step of N or K is far outside.
    if shape[1] > 64:
        lost = case.product[:, 64:] @ case.wide[2].T[64:]
        assert (np.abs(lost) > case.room()).mean() > 0.5


def test_no_depth_is_refused() -> None:
    a, b, c = (np.zeros(shape, np.float16) for shape in ((8, 0), (16, 0), (8, 16)))
    d = np.zeros((8, 8), np.float32)
    with pytest.raises(tw.LaunchError, match="K is 0"):
        FUSED["bound"](tw.f16)(a, b, c, d, target="reference")
