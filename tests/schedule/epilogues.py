"""Random values of sums for the tests of epilogues, their results in f64 with bounds, and arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.checking.compare import Accumulation, gemm_bound
from tilewright.functions.table import FUNCTIONS
from tilewright.runtime.kernel import Bound

from .forms import BULK, FORMS, SYNC

UNIT = tw.f32.unit_roundoff
POISON = 0xA5

WIDE = replace(BULK, atom=tw.atoms.wgmma("f16", 128), tile=(128, 128, 64), stages=2)
WIDE_PINGPONG = replace(WIDE, tile=(64, 128, 64), roles="ping-pong")

KINDS = {
    "direct": FORMS["registers"],
    "direct, persistent": FORMS["persistent"],
    "direct, groups": replace(BULK, epilogue="direct"),
    "staged": replace(SYNC, epilogue="staged"),
    "staged, cp_async": replace(FORMS["cp_async"], epilogue="staged"),
    "staged, persistent": replace(FORMS["persistent"], epilogue="staged"),
    "staged, fragments": replace(FORMS["fragments"], epilogue="staged"),
    "staged, wgmma": replace(FORMS["wgmma, cp_async"], epilogue="staged"),
    "staged, groups": BULK,
    "staged, one buffer": replace(WIDE, buffers=1),
    "staged, ping-pong": WIDE_PINGPONG,
    "overlapped": replace(WIDE, epilogue="overlapped"),
    "overlapped, one buffer": replace(WIDE, epilogue="overlapped", buffers=1),
    "overlapped, ping-pong": replace(WIDE_PINGPONG, epilogue="overlapped"),
    "swapped, staged, cp_async": replace(FORMS["cp_async"], epilogue="staged", swap_ab=True),
    "swapped, overlapped, ping-pong": replace(WIDE_PINGPONG, epilogue="overlapped", swap_ab=True),
}
"""A schedule for every way out."""

WITHOUT_ROLES = [name for name, schedule in KINDS.items() if schedule.roles == "none" and "wgmma" not in name]


# ---------------------------------------------------------------- values with bounds


@dataclass(frozen=True)
class Bounded:
    """Values in float64, and the error bound of a correct computation in f32."""

    value: Any
    error: Any = 0.0

    def rounded(self, unit: float = UNIT, smallest: float = 1e-38) -> Bounded:
        """The values after one more rounding."""
        return Bounded(self.value, self.error + unit * (np.abs(self.value) + self.error) + smallest)

    def __add__(self, other: Bounded) -> Bounded:
        return Bounded(self.value + other.value, self.error + other.error).rounded()

    def __sub__(self, other: Bounded) -> Bounded:
        return Bounded(self.value - other.value, self.error + other.error).rounded()

    def __mul__(self, other: Bounded) -> Bounded:
        error = np.abs(self.value) * other.error + np.abs(other.value) * self.error + self.error * other.error
        return Bounded(self.value * other.value, error).rounded()


def _smooth(name: str, meaning: Callable[[Any], Any], slope: float) -> Callable[[Bounded], Bounded]:
    """Apply a function whose slope is nowhere larger."""
    ulp = max(FUNCTIONS[name].ulp, 1)
    return lambda x: Bounded(meaning(x.value), slope * x.error).rounded(2 * ulp * UNIT)


def _chosen(left: Bounded, right: Bounded, x: Bounded, y: Bounded) -> Bounded:
    """Return ``x`` if left > right, else ``y``; if the comparison is uncertain, both are allowed."""
    unsure = np.abs(left.value - right.value) <= left.error + right.error
    value = np.where(left.value > right.value, x.value, y.value)
    error = np.maximum(x.error, y.error) + np.where(unsure, np.abs(x.value - y.value), 0)
    return Bounded(value, error)


ORACLE: dict[str, Callable[..., Bounded]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "max": lambda x, y: Bounded(np.maximum(x.value, y.value), np.maximum(x.error, y.error)),
    "min": lambda x, y: Bounded(np.minimum(x.value, y.value), np.maximum(x.error, y.error)),
    "neg": lambda x: Bounded(-x.value, x.error),
    "abs": lambda x: Bounded(np.abs(x.value), x.error),
    "tanh": _smooth("tanh", np.tanh, 1.0),
    "sin": _smooth("sin", np.sin, 1.0),
    "where": _chosen,
}
"""What functions mean, with bounds."""

TILES: dict[str, Callable[..., Any]] = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "max": tw.maximum,
    "min": tw.minimum,
    "neg": lambda x: -x,
    "abs": abs,
    "tanh": tw.tanh,
    "sin": tw.sin,
    "where": lambda a, b, x, y: tw.where(a > b, x, y),
}
"""The same of tiles."""

ARITY = {"neg": 1, "abs": 1, "tanh": 1, "sin": 1, "where": 4}

Tree = str | float | tuple[Any, ...]


def random_tree(rng: np.random.Generator, leaves: Sequence[str], depth: int) -> Tree:
    """Return a random function of leaves and numbers."""
    if depth == 0 or rng.random() < 0.15:
        return str(rng.choice(leaves)) if rng.random() < 0.85 else float(rng.integers(-8, 9)) / 4
    name = str(rng.choice(list(ORACLE)))
    return (name, *(random_tree(rng, leaves, depth - 1) for _ in range(ARITY.get(name, 2))))


def computed(tree: Tree, leaves: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]]) -> Any:
    """Return the value of a tree."""
    if isinstance(tree, str):
        return leaves[tree]
    if not isinstance(tree, tuple):
        return leaves["number"](tree)
    name, *parts = tree
    given = [computed(part, leaves, functions) for part in parts]
    if all(isinstance(one, float) for one in given):  # Python computes with plain numbers
        return float(ORACLE[name](*map(Bounded, given)).value)
    return functions[name](*given)


# ---------------------------------------------------------------- arrays


@dataclass
class Problem:
    """Arrays of one problem; each output is a slice of a wider array full of poison.

    Args:
        rng: where their values come from.
        shape: extents (M, N, K).
        batch: how many there are; 0: no batches.
        aligned: whether rows and starts are multiples of 16 bytes.
    """

    rng: np.random.Generator
    shape: tuple[int, int, int]
    batch: int = 0
    aligned: bool = True
    wider: list[tuple[Any, Any]] = field(default_factory=list)

    def extents(self, dims: str) -> list[int]:
        """Extents of an array by the names of its dimensions."""
        named = dict(zip("MNKB", (*self.shape, self.batch), strict=True))
        return [named[dim] for dim in dims.split()]

    def operand(
        self, dims: str, dtype: tw.DType = tw.f16, along: int = -1, aligned: bool | None = None
    ) -> Any:
        """Return random numbers; ``along`` is the contiguous dimension."""
        made = self._empty(dims, dtype, along, self.aligned if aligned is None else aligned)[1]
        made[...] = self.rng.standard_normal(made.shape).astype(dtype.numpy)
        return made

    def output(self, dims: str, dtype: tw.DType = tw.f16, along: int = -1) -> Any:
        """Return a slice of a wider array; both are full of poison."""
        whole, made = self._empty(dims, dtype, along, self.aligned)
        self.wider.append((whole, made))
        return made

    def _empty(self, dims: str, dtype: tw.DType, along: int, aligned: bool) -> tuple[Any, Any]:
        extents = self.extents(dims)
        along %= len(extents)
        order = [*(dim for dim in range(len(extents)) if dim != along), along]
        gap = 16 if aligned else 3
        padded = [extents[dim] + 2 * gap for dim in order]
        padded[-1] += -padded[-1] % 16 if aligned else 0
        whole = np.empty(padded, dtype.numpy)
        whole.view(np.uint8)[...] = POISON
        inner = whole[tuple(slice(gap, gap + extents[dim]) for dim in order)]
        return whole, inner.transpose(np.argsort(order))

    def assert_canaries(self) -> None:
        """Check that nothing around the outputs was written."""
        for whole, made in self.wider:
            around = whole.copy()
            index = tuple(
                slice(gap := 16 if self.aligned else 3, gap + extent)
                for extent in np.array(made.shape)[np.argsort(made.strides)[::-1]]
            )
            around.view(np.uint8).reshape(*around.shape, -1)[index] = POISON
            assert (around.view(np.uint8) == POISON).all(), "elements beside the output were written"


def assert_within(made: Any, want: Bounded, dtype: tw.DType) -> None:
    """Check that every element is within its bound, rounded to the dtype of the output."""
    smallest = 2.0**-9 if dtype.bits == 8 else 2.0**-24 if dtype == tw.f16 else 1e-38
    bound = want.rounded(dtype.unit_roundoff, smallest).error
    off = np.abs(made.astype(np.float64) - want.value)
    wrong = ~(off <= bound)
    assert not wrong.any(), f"{wrong.sum()} elements are off, the first at {np.argwhere(wrong)[0]}"


def product(a: Any, b: Any, schedule: tw.Schedule) -> Bounded:
    """Return ``a @ b.T`` and its bound."""
    exact, _, bound = gemm_bound(a, b.T, Accumulation.of(schedule.atom), tw.f32)
    return Bounded(exact, bound)


def run(kernel: Any, schedule: tw.Schedule, target: str, *arrays: Any) -> Bound:
    """Launch a kernel under a schedule, and check which target ran."""
    bound: Bound = kernel.bind(schedule=schedule)
    assert bound(*arrays, target=target).target == target
    return bound
