"""`tw.gemm_chain` on a GPU: one kernel and two, with row-major and column-major B."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.canaries import Canaries
from tests.ops.test_gemm_chain import CHAINS, FUNCTIONS, Chain

import tilewright as tw
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu

LARGE = [
    ((20000, 64, 1000, 64), tw.bf16, "relu", (), True),
    ((5000, 256, 704, 256), tw.f16, "silu", (), True),
    ((3000, 128, 1504, 192), tw.bf16, "sigmoid", (), True),
    ((700, 96, 300, 40), tw.f16, None, (4, 8), False),
    ((300, 31, 77, 33), tw.f16, "relu", (), True),
]


def there(chain: Chain, order: str) -> list[Any]:
    b = chain.b
    if order == "F":
        b = np.ascontiguousarray(b.swapaxes(-1, -2)).swapaxes(-1, -2)
    return [DeviceArray.of(x) for x in (chain.a, b, chain.c, chain.out)]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("case", [*CHAINS, *LARGE], ids=lambda case: f"{case[0]}-{case[2]}")
def test_random_data(case: Any, order: str) -> None:
    shape, element, activation, lead, shared = case
    chain = Chain(shape, element, activation, *lead, shared=shared)
    a, b, c, out = there(chain, order)
    tw.gemm_chain(a, b, c, activation=activation, out=out, fused=True, target="cuda")
    chain.check(out.host())


@pytest.mark.parametrize("activation", FUNCTIONS)
def test_two_kernels(activation: str | None, canaries: Canaries) -> None:
    pytest.importorskip("torch")
    chain = Chain((300, 400, 200, 300), tw.f16, activation)
    a, b, c, out = (canaries.torch(x) for x in (chain.a, chain.b, chain.c, chain.out))
    with pytest.raises(tw.LaunchError, match="K is 400"):
        tw.gemm_chain(a, b, c, activation=activation, out=out, fused=True)
    for _ in range(2):  # looked at, and known
        out.fill_(float("nan"))
        tw.gemm_chain(a, b, c, activation=activation, out=out)
        chain.check(out.cpu().numpy())
