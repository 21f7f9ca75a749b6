"""`complex_matmul` on a GPU: every case, with and without planes, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.canaries import plain_scratch
from tests.gpu.workspaces import poisoned
from tests.ops.complex_cases import CASES, check, made, numbers

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.composed_products import compare_complex
from tilewright.ops import complex_strategies
from tilewright.ops.complex_matmul import ComplexWanted, plan_complex
from tilewright.runtime import gpu_memory
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import ALIGNMENT, DeviceArray, scratch
from tilewright.schedule.question import Splitting

pytestmark = pytest.mark.gpu


def put(given: Any) -> Any:
    return tuple(map(DeviceArray.of, given)) if isinstance(given, tuple) else DeviceArray.of(given)


def get(there: Any) -> Any:
    return tuple(one.host() for one in there) if isinstance(there, tuple) else there.host()


@pytest.mark.parametrize("first", ["as it lies", "planes"])
@pytest.mark.parametrize("method", ["4m", "3m"])
@pytest.mark.parametrize("name", CASES)
def test_every_case(name: str, method: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complex_strategies, "_planes_pay", lambda *given: first == "planes")
    arrays, factors, conjugates = made(name)
    if "out" not in arrays:
        shape = np.broadcast_shapes(CASES[name][6], CASES[name][7])
        m, n, _ = CASES[name][5]
        part = tw.dtype(CASES[name][0])
        arrays["out"] = tuple(np.full((*shape, m, n), np.nan, part.numpy) for _ in range(2))
    there = {one: put(array) for one, array in arrays.items()}
    flags = {"conjugate_a": bool(conjugates[0]), "conjugate_b": bool(conjugates[1])}
    given = {one: there.get(one) for one in ("a", "b", "c", "out")}
    product = plan_complex(given, ComplexWanted(**factors, **flags, method=method))
    ran = product.run()
    CUDA_DRIVER.synchronize()
    assert {one.target for one in ran} == {"cuda"}
    how = product.details.accumulation(ran[-1].schedule)
    beta = 1 if factors["beta"] is None else factors["beta"]
    check(
        *(get(there["out"]), arrays["a"], arrays["b"], arrays.get("c")),
        how=how,
        conjugates=conjugates,
        alpha=factors["alpha"],
        beta=beta,
        method=method,
    )


@pytest.mark.parametrize(
    ("part", "precision"), [("f16", "exact"), ("f32", "tf32"), ("f32", "exact"), ("f64", "exact")]
)
def test_large_products(part: str, precision: str) -> None:
    """tf32 numbers are rounded: truncated numbers, as wgmma uses them, would exceed the bound by far."""
    rng = np.random.default_rng(0)
    a, b = (numbers(rng, (1500, 1500), tw.dtype(part), "interleaved") for _ in range(2))
    out = np.zeros((1500, 1500), a.dtype)
    there = [DeviceArray.of(one) for one in (a, b, out)]
    given = {"a": there[0], "b": there[1], "c": None, "out": there[2]}
    product = plan_complex(given, ComplexWanted(precision=precision))
    assert [one.name for one in product.details.planes] == (["a", "b"] if part == "f32" else [])
    assert (product.details.doubled is not None) is (part == "f16")
    ran = product.run()
    CUDA_DRIVER.synchronize()
    assert product.details.rounds is (precision == "tf32")
    how = product.details.accumulation(ran[-1].schedule)
    rows = slice(0, 1500, 7)
    compare_complex(a[rows], b, there[2].host()[rows], how=how).raise_if_wrong()


def test_planes_of_tf32_are_rounded() -> None:
    """Planes of both operands are rounded, although only one of them must be transposed."""
    rng = np.random.default_rng(5)
    a, b = ([rng.random((1030, 1028), np.float32) for _ in range(2)] for _ in range(2))
    b = [one.T.copy() for one in b]
    there = [put(tuple(one)) for one in (a, b)]
    out = put(tuple(np.full((1030, 1030), np.nan, np.float32) for _ in range(2)))
    product = plan_complex({"a": there[0], "b": there[1], "out": out}, ComplexWanted(precision="tf32"))
    ran = product.run()
    CUDA_DRIVER.synchronize()
    assert (product.details.rounds, ran[-1].schedule.atom.rounding) == (True, "truncate")
    rows, made = slice(0, 1030, 5), get(out)
    sides = tuple(x[rows] for x in a), tuple(b), tuple(x[rows] for x in made)
    compare_complex(*sides, how=product.details.accumulation(ran[-1].schedule)).raise_if_wrong()
    assert not compare_complex(*sides, how=Accumulation.of(ran[-1].schedule.atom)).ok


@pytest.mark.parametrize("split", [{"split_k": 4}, {"split_k": "stream"}, {"batch_invariant": True}], ids=str)
@pytest.mark.parametrize(("part", "precision"), [("f16", "exact"), ("f32", "tf32"), ("f32", "exact")])
def test_k_in_parts(
    part: str, precision: str, split: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two calls on the same arrays give the same bits; the result holds poison between them."""
    rng = np.random.default_rng(2)
    shapes = ((90, 4000), (4000, 70))
    a, b = (numbers(rng, shape, tw.dtype(part), "interleaved") for shape in shapes)
    asked, found = ComplexWanted(precision=precision, how=Splitting(**split)), []
    with poisoned(monkeypatch):
        for _ in range(2):
            there = [DeviceArray.of(one) for one in (a, b, np.zeros((90, 70), a.dtype))]
            given = {"a": there[0], "b": there[1], "c": None, "out": there[2]}
            product = plan_complex(given, asked)
            schedule = product.run()[-1].schedule
            CUDA_DRIVER.synchronize()
            found.append(there[2].host())
    assert schedule is not None
    assert schedule.split_k == split.get("split_k", schedule.split_k)
    compare_complex(a, b, found[0], how=product.details.accumulation(schedule)).raise_if_wrong()
    np.testing.assert_array_equal(found[0].view(np.uint8), found[1].view(np.uint8))


@pytest.mark.parametrize("conjugates", [(0, 0), (1, 0), (0, 1), (1, 1)], ids=str)
@pytest.mark.parametrize("order", ["", " transposed"])
def test_one_product_of_pairs_again(order: str, conjugates: tuple[int, int]) -> None:
    """Each part of B occurs twice; the second call, on other arrays, replays the first one's launch."""
    rng = np.random.default_rng(6)
    flags = {"conjugate_a": bool(conjugates[0]), "conjugate_b": bool(conjugates[1])}
    for _ in range(2):
        a = numbers(rng, (520, 1000), tw.f16, "interleaved")
        b = numbers(rng, (1000, 776), tw.f16, "interleaved" + order)
        there = [DeviceArray.of(one) for one in (a, b, np.zeros((520, 776), a.dtype))]
        product = plan_complex({"a": there[0], "b": there[1], "out": there[2]}, ComplexWanted(**flags))
        assert product.details.doubled is not None
        tw.complex_matmul(there[0], there[1], out=there[2], **flags)
        CUDA_DRIVER.synchronize()
        how = Accumulation.of(tw.atoms.wgmma("f16", 128))
        check(there[2].host(), a, b, None, how=how, conjugates=conjugates)


@pytest.mark.parametrize("method", ["4m", "3m"])
def test_a_product_behind_planes_again(method: str) -> None:
    """The second call, on other arrays, launches the kernels of the first."""
    rng = np.random.default_rng(1)
    for _ in range(3):
        a, b = (numbers(rng, (520, 520), tw.f16, "interleaved") for _ in range(2))
        there = [DeviceArray.of(one) for one in (a, b, np.zeros((520, 520), a.dtype))]
        tw.complex_matmul(there[0], there[1], out=there[2], alpha=0.125, conjugate_b=True, method=method)
        CUDA_DRIVER.synchronize()
        how = Accumulation.of(tw.atoms.wgmma("f16", 128))
        check(there[2].host(), a, b, None, how=how, conjugates=(0, 1), alpha=0.125, method=method)


def test_memory_is_kept_for_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "_taken", plain_scratch)
    with scratch(5 << 20, ("cuda", 0), 0) as first, scratch(1 << 20, ("cuda", 0), 0) as beside:
        assert abs(first - beside) >= 1 << 20
    with scratch(1 << 20, ("cuda", 0), 0) as again:
        assert again in (first, beside)
        assert again % ALIGNMENT == 0
