"""Trials of `complex_matmul`, and the flow of six launches that it replaces."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.checking.compare import GemmComparison
from tilewright.checking.composed_products import compare_complex, planes
from tilewright.checking.sample import Array, normal
from tilewright.dtypes import IN_TORCH, DType
from tilewright.lang.launch import block_index
from tilewright.lang.operations import copy, load
from tilewright.lang.scalars import ceil_div
from tilewright.ops.complex_matmul import ComplexWanted, plan_complex
from tilewright.ops.matmul import matmul
from tilewright.runtime.executable import Executable
from tilewright.runtime.gpu_memory import device_get, device_put
from tilewright.runtime.kernel import kernel
from tilewright.targets.target import CUDA, TARGETS
from tilewright.threads.distribution import raked
from tilewright.tune.measure import Effort, Measurement, measure
from tilewright.tune.rivals import as_tensor, installed_torch
from tilewright.tune.trial import OURS, FlowTrial

# ----------------------------------------------------------------
# Six launches: four real products, and two additions.


LAUNCHES = 6

TILE = (32, 64)


@kernel(P="M N", Q="M N", D="M N")
def added(P: Any, Q: Any, D: Any, *, negative: bool, on_host: bool) -> None:
    """``D = P + Q``, or ``P - Q``."""
    i, j = block_index((ceil_div(D.shape[0], TILE[0]), ceil_div(D.shape[1], TILE[1])))
    spread = raked(TILE, (1, 1) if on_host else (4, 32), 1, 1)
    p, q = (load(array.tile(TILE, (i, j)), spread) for array in (P, Q))
    copy(p - q if negative else p + q, D.tile(TILE, (i, j)))


@dataclass
class SixLaunches:
    """``D = A @ B`` of complex matrices in planes, as four real products and two additions.

    Args:
        a: real and imaginary parts of A (M, K), where the target reaches them.
        b: real and imaginary parts of B (K, N).
        out: real and imaginary parts of the result (M, N).
        products: four arrays (M, N), for the products.
        target: the target whose memory holds the arrays.
        precision: how exactly f32 is multiplied.
    """

    a: tuple[Any, Any]
    b: tuple[Any, Any]
    out: tuple[Any, Any]
    products: tuple[Any, ...]
    target: str
    precision: str = "exact"

    def launch(self) -> None:
        """Start all six launches."""
        (a_re, a_im), (b_re, b_im) = self.a, self.b
        pairs = ((a_re, b_re), (a_im, b_im), (a_re, b_im), (a_im, b_re))
        for (left, right), product in zip(pairs, self.products, strict=True):
            matmul(left, right, product, precision=self.precision, target=self.target)
        on_host = not TARGETS[self.target].warps
        for part, (first, second) in enumerate((self.products[:2], self.products[2:])):
            bound = added.bind(negative=part == 0, on_host=on_host)
            bound(first, second, self.out[part], target=self.target)


def bytes_moved(shape: tuple[int, int, int], item_bytes: int) -> int:
    """Return the bytes that the six launches read and write, every array once per launch.

    Args:
        shape: M, N and K.
        item_bytes: bytes of a real number.
    """
    m, n, k = shape
    return item_bytes * (4 * (m * k + k * n + m * n) + 2 * 3 * m * n)


# ---------------------------------------------------------------- the trial


SIX = "six launches"
"""Four real products and two additions, all of them ours."""

MOST_ROWS = 256
"""Number of rows of the result that are compared."""

_INTERLEAVED = {"f16": dtypes.c32, "f32": dtypes.c64, "f64": dtypes.c128}


@dataclass
class ComplexTrial(FlowTrial):
    """`complex_matmul` of random matrices on a target.

    Args:
        shape: M, N and K.
        dtype: dtype of real and imaginary parts.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``.
        planar: whether real and imaginary parts are separate arrays.
        asked: the other arguments of `complex_matmul`.
        seed: seed of the random numbers.
        ran: the executables of the last call.
    """

    shape: tuple[int, int, int]
    dtype: DType
    target: str
    planar: bool = False
    asked: ComplexWanted = field(default_factory=ComplexWanted)
    seed: int = 0
    ran: tuple[Executable, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        (m, n, k), rng = self.shape, np.random.default_rng(self.seed)
        planar = self.planar or self.dtype.name not in _INTERLEAVED
        self.a, self.b = (
            self._together([normal(rng, extents, self.dtype) for _ in range(2)], planar=planar)
            for extents in ((m, k), (k, n))
        )
        blank = [np.full((m, n), np.nan, self.dtype.numpy) for _ in range(2)]
        self.planar = planar
        given = {"a": self.a, "b": self.b, "out": self._together(blank, planar=planar)}
        self._there = {name: self._put(array) for name, array in given.items()}
        self.plan = plan_complex(self._there, self.asked._replace(target=self.target))
        kind = f"planes of {self.dtype}" if planar else str(_INTERLEAVED[self.dtype.name])
        self.name = f"complex_matmul<{self.target}, {kind}, {'x'.join(map(str, self.shape))}>"

    def _together(self, parts: list[Array], *, planar: bool) -> Any:
        if planar:
            return tuple(parts)
        return np.stack(parts, -1).view(_INTERLEAVED[self.dtype.name].numpy)[..., 0]

    def _put(self, given: Any) -> Any:
        if isinstance(given, tuple):
            return tuple(device_put(one, self.target) for one in given)
        return device_put(given, self.target)

    def launch(self) -> tuple[Executable, ...]:
        """Start the product; on a GPU it may still run when this returns."""
        self.ran = self.plan.run()
        return self.ran

    def result(self) -> Any:
        """Return the result in host memory, planes as a tuple."""
        there = self._there["out"]
        return tuple(map(device_get, there)) if isinstance(there, tuple) else device_get(there)

    def verify(self) -> GemmComparison:
        """Compare the elements of up to `MOST_ROWS` rows, under a bound for each."""
        rows = np.unique(np.linspace(0, self.shape[0] - 1, min(MOST_ROWS, self.shape[0])).astype(int))
        sides = (
            (re, -im if conjugated else im)
            for (re, im), conjugated in zip(
                map(planes, (self.a, self.b)), (self.asked.conjugate_a, self.asked.conjugate_b), strict=True
            )
        )
        (a_re, a_im), b = sides
        schedule = self.plan.schedule
        assert schedule is not None, "the kernel is a dataflow kernel"
        split = self.plan.details.halves
        halves = 0 if split is None else 2 if split.both else 1
        how = self.plan.details.accumulation(schedule)
        found = tuple(one[rows] for one in planes(self.result()))
        method = self.asked.method
        return compare_complex((a_re[rows], a_im[rows]), b, found, how=how, method=method, halves=halves)

    def six_launches(self) -> SixLaunches:
        """Return the same product of planes, by four real products and two additions."""
        (m, n, _), numbers = self.shape, self.dtype.numpy
        a, b = (self._put(tuple(map(np.ascontiguousarray, planes(one)))) for one in (self.a, self.b))
        made = [device_put(np.full((m, n), np.nan, numbers), self.target) for _ in range(6)]
        return SixLaunches(a, b, (made[0], made[1]), tuple(made[2:]), self.target, self.asked.precision)

    def rivals(self) -> dict[str, Callable[[], object]]:
        """Return calls of other libraries, by name; none if they are not installed."""
        if self.target == CUDA.name:
            return self._torch_rivals()
        if self.dtype.name not in ("f32", "f64"):
            return {}
        a, b = (
            self._together([np.asarray(x) for x in planes(one)], planar=False) for one in (self.a, self.b)
        )
        out = np.empty((self.shape[0], self.shape[1]), a.dtype)
        return {"NumPy": functools.partial(np.matmul, a, b, out=out)}

    def _torch_rivals(self) -> dict[str, Callable[[], object]]:
        """Return cuBLAS's complex product, and four real products of planes."""
        if (torch := installed_torch()) is None:
            return {}
        tf32 = self.asked.precision == "tf32"
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        (a_re, a_im), (b_re, b_im) = (
            tuple(as_tensor(device_put(np.ascontiguousarray(x), self.target)) for x in planes(one))
            for one in (self.a, self.b)
        )
        kind = getattr(torch, IN_TORCH[self.dtype.name])
        made = [torch.empty(a_re.shape[0], b_re.shape[1], dtype=kind, device=a_re.device) for _ in range(4)]
        pairs = ((a_re, b_re), (a_im, b_im), (a_re, b_im), (a_im, b_re))

        def four() -> None:
            for (left, right), out in zip(pairs, made, strict=True):
                torch.mm(left, right, out=out)

        calls: dict[str, Callable[[], object]] = {"four real products (cuBLAS)": four}
        if self.dtype.name in ("f32", "f64"):
            a, b = torch.complex(a_re, a_im), torch.complex(b_re, b_im)
            product = functools.partial(torch.mm, a, b, out=torch.empty_like(a @ b))
            calls["cuBLAS, tf32" if tf32 else "cuBLAS"] = product
        return calls

    def time(self, effort: Effort | None = None) -> Measurement:
        """Measure it in turns with six launches and with other libraries."""
        calls = {OURS: self.launch, SIX: self.six_launches().launch, **self.rivals()}
        return measure(calls, self.target, effort=effort)

    @property
    def flops(self) -> int:
        """Operations of complex arithmetic: four multiplications and four additions for each m, n, k."""
        m, n, k = self.shape
        return 8 * m * n * k

    @property
    def launches(self) -> dict[str, int]:
        """Number of kernels that each flow launches."""
        return {OURS: len(self.plan.launches), SIX: LAUNCHES}

    @property
    def moved(self) -> dict[str, int]:
        """Bytes that the launches of each flow read and write, every array once per launch."""
        return {OURS: self.plan.moved_bytes, SIX: bytes_moved(self.shape, self.dtype.bytes)}

    @property
    def bytes(self) -> int:
        """Bytes that our launches read and write."""
        return self.moved[OURS]
