"""The flow that one kernel for complex numbers replaces: four real products, and two additions of them."""

from __future__ import annotations

from typing import Any

from tilewright.lang.launch import block_index
from tilewright.lang.operations import copy, load
from tilewright.lang.scalars import ceil_div
from tilewright.ops.matmul import matmul
from tilewright.runtime.decorator import kernel
from tilewright.targets.target import TARGETS
from tilewright.threads.distribution import raked

LAUNCHES = 6

TILE = (32, 64)


@kernel(P="M N", Q="M N", D="M N")
def added(P: Any, Q: Any, D: Any, *, negative: bool, on_host: bool) -> None:
    """``D = P + Q``, or ``P - Q``."""
    i, j = block_index((ceil_div(D.shape[0], TILE[0]), ceil_div(D.shape[1], TILE[1])))
    spread = raked(TILE, (1, 1) if on_host else (4, 32), 1, 1)
    p, q = (load(array.tile(TILE, (i, j)), spread) for array in (P, Q))
    copy(p - q if negative else p + q, D.tile(TILE, (i, j)))


class SixLaunches:
    """``D = A @ B`` of complex matrices in planes, as four real products and two additions.

    Args:
        a: real and imaginary parts of A (M, K), where the target reaches them.
        b: those of B (K, N).
        out: those of the result (M, N).
        products: four arrays (M, N), for the products.
        target: where they lie.
        precision: how exactly f32 is multiplied.
    """

    def __init__(
        self,
        a: tuple[Any, Any],
        b: tuple[Any, Any],
        out: tuple[Any, Any],
        products: tuple[Any, ...],
        target: str,
        precision: str = "exact",
    ) -> None:
        self._pairs = ((a[0], b[0]), (a[1], b[1]), (a[0], b[1]), (a[1], b[0]))
        self.out, self._products = out, products
        self._target, self._precision = target, precision

    def launch(self) -> None:
        """Start all six."""
        for (left, right), product in zip(self._pairs, self._products, strict=True):
            matmul(left, right, product, precision=self._precision, target=self._target)
        on_host = not TARGETS[self._target].warps
        for part, (first, second) in enumerate((self._products[:2], self._products[2:])):
            bound = added.bind(negative=part == 0, on_host=on_host)
            bound(first, second, self.out[part], target=self._target)


def bytes_moved(shape: tuple[int, int, int], item_bytes: int) -> int:
    """What its launches read and write, every array once for each launch.

    Args:
        shape: M, N and K.
        item_bytes: of a real number.
    """
    m, n, k = shape
    return item_bytes * (4 * (m * k + k * n + m * n) + 2 * 3 * m * n)
