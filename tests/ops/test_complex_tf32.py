"""Complex products in tf32: numbers are rounded when planes are written; otherwise Hopper truncates them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.ops.layouts import layouts

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.composed_products import compare_complex
from tilewright.functions.conversions import keep_fraction
from tilewright.ops import planes
from tilewright.ops.complex_matmul import ComplexWanted, plan_complex
from tilewright.ops.complex_strategies import strategy_for
from tilewright.ops.planes import Writing, splitting
from tilewright.ops.problem import problem_of
from tilewright.runtime.arrays import ArrayInfo
from tilewright.targets.target import CUDA, HIP

from .complex_cases import numbers

BULK = tw.Schedule(
    tw.atoms.wgmma("f32", 32), (64, 32, 32), stages=3, staging="tma", roles="cooperative", groups=1
)


def product(layout: str, order: str = "nn", kind: str = "normal") -> tuple[Any, Any, Any]:
    """Return operands with cut tiles of B along N and K, and the plan of their product."""
    rng, made = np.random.default_rng(3), []
    for shape, along in zip(((72, 76), (76, 52)), order, strict=True):
        one = numbers(rng, shape if along == "n" else shape[::-1], tw.f32, "interleaved")
        one = abs(one.real) + 1j * abs(one.imag) if kind == "positive" else one
        one = one.astype(np.complex64) if along == "n" else one.astype(np.complex64).T
        made.append((one.real.copy("K"), one.imag.copy("K")) if layout == "planar" else one)
    given = {"a": made[0], "b": made[1]}
    return *made, plan_complex(given, ComplexWanted(precision="tf32", how=BULK, target="reference"))


@pytest.mark.parametrize("kind", ["normal", "positive"])
@pytest.mark.parametrize("layout", ["interleaved", "planar"])
def test_planes_are_rounded(layout: str, kind: str) -> None:
    """Planes of both operands are rounded, or of none, even if one could be multiplied without planes."""
    a, b, made = product(layout, kind=kind)
    assert [(one.name, one.rounded) for one in made.details.planes] == [("a", True), ("b", True)]
    ran = made.run()
    assert (ran[-1].target, ran[-1].schedule) == ("reference", BULK)
    how = made.details.accumulation(BULK)
    assert (how, how.rounding) == (replace(Accumulation.of(BULK.atom), rounding="nearest"), "nearest")
    compare_complex(a, b, made.result, how=how).raise_if_wrong()


def test_a_plan_says_what_is_launched_and_what_it_moves() -> None:
    """Both parts of A and B are read, written to scratch memory, and read again."""
    *_, made = product("planar")
    plan, parts = made, 2 * 4 * (72 * 76 + 76 * 52)
    assert [one.kernel.program.name for one in plan.launches] == ["planes_of_both", "gemm_complex"]
    assert plan.moved_bytes == 3 * parts + 2 * 4 * 72 * 52
    assert parts <= plan.scratch_bytes == made.details.size_bytes < 2 * parts
    words = f"{plan.scratch_bytes} bytes of scratch, {plan.moved_bytes} moved; {made.details}"
    assert str(plan) == f"planes_of_both, then gemm_complex: {words}"


def test_one_kernel_takes_no_scratch_memory() -> None:
    *_, made = product("planar", order="nt")
    assert (len(made.launches), made.scratch_bytes) == (1, 0)


def test_what_is_cut_off_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same kernels are wrong if planes hold the unrounded numbers."""
    monkeypatch.setattr(planes, "round_to_tf32", lambda value: value)
    planes.splitting_of_two.cache_clear()
    a, b, made = product("interleaved")
    made.run()
    planes.splitting_of_two.cache_clear()
    found = compare_complex(a, b, made.result, how=made.details.accumulation(BULK))
    assert "parts are beyond their bound" in found.reason
    compare_complex(a, b, made.result, how=Accumulation.of(BULK.atom)).raise_if_wrong()


def test_planes_that_are_given_along_k_are_multiplied_as_they_lie() -> None:
    """One kernel multiplies them and truncates numbers."""
    a, b, made = product("planar", order="nt")
    assert (made.details.planes, made.details.rounds, len(made.launches)) == ((), False, 1)
    made.run()
    how = made.details.accumulation(BULK)
    assert how.rounding == "truncate"
    compare_complex(a, b, made.result, how=how).raise_if_wrong()


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_each_number_is_rounded_to_the_nearest(target: str) -> None:
    """Ties go away from zero; infinities and NaN stay, and no number becomes infinite."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 72), np.float32)
    special = [1 + 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-12, 3e-39, -0.0, np.inf, -np.inf, np.nan]
    x[3, : len(special)] = special
    ends = [0x7F800001, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F7FEFFF, 0x7F7FF000, 0xFF7FF000, 0x7F7FF800]
    x[4, : len(ends)] = np.uint32(ends).view(np.float32)
    out = [np.zeros_like(x) for _ in range(3)]
    how = Writing(("", "_im"), tw.f32, False, False, False, target == "cpu", rounded=True)
    ran = splitting(0).bind(how=how)(x, x[::-1], *out, target=target)
    assert ran.target == target
    for made, given in zip(out, (x, x[::-1]), strict=False):
        np.testing.assert_array_equal(made, keep_fraction(given, 10))
        assert (np.isfinite(made) == np.isfinite(given)).all()
        assert (np.signbit(made) == np.signbit(given))[~np.isnan(given)].all()


@pytest.mark.parametrize(
    ("arch", "order", "planes", "rounded"),
    [("sm_90a", "nn", "ab", True), ("sm_90a", "nt", "", True), ("sm_80", "nn", "", False)],
)
def test_who_rounds(arch: str, order: str, planes: str, rounded: bool) -> None:
    """Planes are rounded for multiplies that truncate; multiplies before Hopper round themselves."""
    n, infos = 4096, {}
    for name, letter in zip(("a", "b", "out"), f"{order}n", strict=True):
        for end in ("", "_im"):
            steps = (n, 1) if letter == "n" else (1, n)
            infos[name + end] = ArrayInfo(4096, (n, n), steps, tw.f32, ("cuda", 0), False, None)
    machine = (CUDA.architecture(arch), 132)
    way = strategy_for(infos, problem_of(layouts(infos)), "4m", "tf32", machine, None, (False,) * 3)
    assert "".join(one.name for one in way.planes) == planes
    assert way.rounds is (rounded and planes != "")


@pytest.mark.parametrize("name", HIP.architectures)
def test_what_has_no_tf32_multiplies_f32_in_the_same_way(name: str) -> None:
    """AMD's GPUs have no rate for tf32; the rate of f32 decides whether planes pay."""
    for n in (70, 4096):
        infos = {
            array + end: ArrayInfo(4096, (n, n), (2 * n, 2), tw.f32, ("rocm", 0), False, None)
            for array in ("a", "b", "out")
            for end in ("", "_im")
        }
        machine = (HIP.architecture(name), 304)
        given = (infos, problem_of(layouts(infos)), "4m")
        ways = [
            strategy_for(*given, precision, machine, None, (False,) * 3) for precision in ("tf32", "exact")
        ]
        assert ways[0] == ways[1]
