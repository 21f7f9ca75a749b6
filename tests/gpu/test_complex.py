"""`complex_matmul` on a GPU: every case, read as it lies and by planes, element by element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.canaries import scratch_between
from tests.ops.complex_cases import CASES, check, made, numbers

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.complex_products import compare_complex
from tilewright.ops import complex_planning, complex_ways
from tilewright.ops.complex_planning import Asked, product_of_complex
from tilewright.runtime import cuda
from tilewright.runtime.device_array import DeviceArray
from tilewright.runtime.scratch import ALIGNMENT, scratch

pytestmark = pytest.mark.gpu


def put(given: Any) -> Any:
    return tuple(map(DeviceArray.of, given)) if isinstance(given, tuple) else DeviceArray.of(given)


def get(there: Any) -> Any:
    return tuple(one.host() for one in there) if isinstance(there, tuple) else there.host()


@pytest.mark.parametrize("first", ["as it lies", "planes"])
@pytest.mark.parametrize("method", ["4m", "3m"])
@pytest.mark.parametrize("name", CASES)
def test_every_case(name: str, method: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(complex_planning, "scratch", scratch_between)
    monkeypatch.setattr(complex_ways, "_gains", lambda *given: first == "planes")
    arrays, factors, conjugates = made(name)
    if "out" not in arrays:
        shape = np.broadcast_shapes(CASES[name][6], CASES[name][7])
        m, n, _ = CASES[name][5]
        part = tw.dtype(CASES[name][0])
        arrays["out"] = tuple(np.full((*shape, m, n), np.nan, part.numpy) for _ in range(2))
    there = {one: put(array) for one, array in arrays.items()}
    flags = {"conjugate_a": bool(conjugates[0]), "conjugate_b": bool(conjugates[1])}
    given = {one: there.get(one) for one in ("a", "b", "c", "out")}
    product = product_of_complex(given, Asked(**factors, **flags, method=method))
    ran = product.launch()
    cuda.synchronize()
    assert {one.target for one in ran} == {"cuda"}
    how = Accumulation.of(ran[-1].schedule.atom)
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
def test_large_products(part: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    a, b = (numbers(rng, (1500, 1500), tw.dtype(part), "interleaved") for _ in range(2))
    out = np.zeros((1500, 1500), a.dtype)
    there = [DeviceArray.of(one) for one in (a, b, out)]
    given = {"a": there[0], "b": there[1], "c": None, "out": there[2]}
    product = product_of_complex(given, Asked(precision=precision))
    monkeypatch.setattr(complex_planning, "scratch", scratch_between)
    ran = product.launch()
    cuda.synchronize()
    how = Accumulation.of(ran[-1].schedule.atom)
    rows = slice(0, 1500, 7)
    compare_complex(a[rows], b, there[2].host()[rows], how=how).raise_if_wrong()


def test_memory_is_kept_for_a_stream() -> None:
    with scratch(5 << 20, ("cuda", 0), 0) as first, scratch(1 << 20, ("cuda", 0), 0) as beside:
        assert abs(first - beside) >= 1 << 20
    with scratch(1 << 20, ("cuda", 0), 0) as again:
        assert again in (first, beside)
        assert again % ALIGNMENT == 0
