"""Complex halves computed as one real product whose second operand holds each part twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.ops.layouts import layouts

import tilewright as tw
from tilewright.checking.composed_products import compare_complex, planes
from tilewright.ops import complex_matmul, complex_strategies
from tilewright.ops.complex_matmul import ComplexWanted, plan_complex
from tilewright.ops.complex_strategies import (
    ComplexStrategy,
    Doubled,
    by_one_product,
    doubling,
    product_of_doubled,
)
from tilewright.ops.problem import problem_of
from tilewright.runtime.arrays import ArrayInfo
from tilewright.targets.target import CUDA

from .complex_cases import numbers

M, N, K = 40, 72, 48


def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use Hopper's strategy for large products."""

    def way(infos: Any, problem: Any, machine: Any, conjugates: Any) -> ComplexStrategy | None:
        doubled = Doubled.of(infos, problem, conjugates)
        return None if doubled is None else ComplexStrategy("4m", doubled=doubled)

    monkeypatch.setattr(complex_matmul, "by_one_product", way)


def operands(order: str, seed: int = 4) -> tuple[Any, Any, Any]:
    """Return row-major A, B along N or along K, and a poisoned result with gaps between its rows."""
    rng = np.random.default_rng(seed)
    a = numbers(rng, (M, K), tw.f16, "interleaved")
    b = numbers(rng, (K, N), tw.f16, "interleaved" + " transposed" * (order == "nt"))
    whole = np.full((M, N + 4, 2), np.nan, np.float16)
    return a, b, whole.view(tw.c32.numpy)[..., 0][:, :N]


@pytest.mark.parametrize("conjugates", [(0, 0), (1, 0), (0, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("order", ["nn", "nt"])
def test_every_element_is_right(
    order: str, conjugates: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    always(monkeypatch)
    a, b, out = operands(order)
    flags = {"conjugate_a": bool(conjugates[0]), "conjugate_b": bool(conjugates[1])}
    product = plan_complex({"a": a, "b": b, "out": out}, ComplexWanted(**flags, target="reference"))
    ran = product.run()
    assert [one.kernel.name for one in ran] == ["complex_twice", "gemm_of_pairs"]
    assert {one.target for one in ran} == {"reference"}
    assert product.details.doubled is not None
    assert product.details.doubled.along_k is (order == "nt")
    assert product.details.moved_bytes == 3 * K * N * 4
    schedule = ran[-1].schedule
    assert schedule is not None
    sides = [
        (re, -im if wanted else im) for (re, im), wanted in zip(map(planes, (a, b)), conjugates, strict=True)
    ]
    compare_complex(*sides, out, how=product.details.accumulation(schedule)).raise_if_wrong()


def test_a_known_product_launches_both_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known product is launched on other arrays; the second operand is written again."""
    always(monkeypatch)
    complex_matmul._PLANS.forget()
    for seed in range(2):
        a, b, out = operands("nn", seed)
        assert tw.complex_matmul(a, b, out=out, target="cpu") is out
        compare_complex(a, b, out).raise_if_wrong()
    complex_matmul._PLANS.forget()


def test_a_sign_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    always(monkeypatch)
    monkeypatch.setattr(complex_strategies, "LOW", 0)
    a, b, out = operands("nn")
    product = plan_complex({"a": a, "b": b, "out": out}, ComplexWanted(target="reference"))
    ran = product.run()
    assert not compare_complex(a, b, out, how=product.details.accumulation(ran[-1].schedule)).ok


OTHERS: tuple[dict[str, Any], ...] = (
    *({"alpha": 2}, {"beta": 1}, {"precision": "f32"}, {"method": "3m"}),
    *({"how": "given"}, {"a": "F"}, {"out": "F"}),
)


@pytest.mark.parametrize("words", OTHERS, ids=str)
def test_what_is_no_plain_product_of_such_arrays_goes_another_way(
    words: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    always(monkeypatch)
    a, b, out = operands("nn")
    if words.get("a"):
        a = numbers(np.random.default_rng(1), (M, K), tw.f16, "interleaved transposed")
    if words.get("out"):
        out = np.asfortranarray(out)
    sync = tw.Schedule(tw.atoms.MMA_F16, (32, 32, 16), warps=(1, 1), stages=2)
    given = {one: value for one, value in words.items() if one not in ("a", "out", "how")}
    asked = ComplexWanted(**given, how=sync if "how" in words else None, target="reference")
    product = plan_complex({"a": a, "b": b, "out": out}, asked)
    assert product.details.doubled is None


def on_a_gpu(m: int, n: int, k: int, *, offset: int = 0) -> dict[str, ArrayInfo]:
    """Return interleaved matrices of halves in the memory of a GPU."""
    return {
        name + end: ArrayInfo(4096 + offset + at, shape, (2 * shape[1], 2), tw.f16, ("cuda", 0), False, None)
        for name, shape in (("a", (m, k)), ("b", (k, n)), ("out", (m, n)))
        for end, at in (("", 0), ("_im", 2))
    }


@pytest.mark.parametrize(
    ("m", "n", "offset", "arch", "is_one"),
    [
        *((4096, 4096, 0, "sm_90a", True), (4096, 4096, 0, "sm_80", False), (128, 128, 0, "sm_90a", False)),
        *((4096, 4096, 4, "sm_90a", False), (4096, 4098, 0, "sm_90a", False)),
        *((4096, 1024, 0, "sm_90a", True), (1024, 4096, 0, "sm_90a", False)),
    ],
)
def test_it_is_chosen_where_it_pays(m: int, n: int, offset: int, arch: str, is_one: bool) -> None:
    """The strategy needs arrays whose rows bulk copies can load, and a B not much larger than A."""
    infos, machine = on_a_gpu(m, n, 4096, offset=offset), (CUDA.architecture(arch), 132)
    way = by_one_product(infos, problem_of(layouts(infos)), machine, (False,) * 3)
    assert (way is not None) is is_one


def test_both_kernels_compile_for_hopper() -> None:
    n = 1024
    pairs, row = tw.like("i32", n, n, align=256), tw.like("i32", n, n, strides=(2 * n, 1), align=256)
    moved = doubling().bind(signs=(0, 0x8000)).compile(pairs, row, row, target="cuda", arch="sm_90a")
    lines = [line for line in moved.source.splitlines() if "bytes at a time" in line]
    assert len(lines) == 3
    assert all("16 bytes" in line for line in lines)
    a, b = tw.like("f16", n, 2 * n, align=256), tw.like("f16", 2 * n, 2 * n, align=256)
    made = product_of_doubled().bind(schedule=None).compile(a, b, a, target="cuda", arch="sm_90a")
    for ran in (moved, made):
        assert ran.resources["spill_store_bytes"] == ran.resources["stack_bytes"] == 0
    assert "griddepcontrol.wait" in made.source
    assert "wgmma" in made.source
