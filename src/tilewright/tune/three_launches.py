"""The flow that one kernel with scales replaces: convert operands, multiply them, scale and add the bias."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.checking.flows import StoredComparison, compare_flow
from tilewright.checking.sample import Array
from tilewright.dtypes import DType
from tilewright.errors import WrongResultError
from tilewright.lang.dataflow.loops import steps, tiles, zeros
from tilewright.lang.launch import block_index
from tilewright.lang.operations import copy, load
from tilewright.lang.scalars import ceil_div
from tilewright.ops.ending import ACTIVATIONS, saturated
from tilewright.ops.matmul import matmul
from tilewright.ops.products import output_dtype, plain
from tilewright.ops.widening import widen, widen_in_groups
from tilewright.packing import unpack
from tilewright.runtime.arrays import describe
from tilewright.runtime.gpu_memory import device_get, device_put
from tilewright.runtime.kernel import kernel
from tilewright.runtime.packed_arrays import Packed, packed
from tilewright.threads.distribution import raked
from tilewright.tune.trial import accumulation_of

SPREAD = raked((8, 256), (8, 32), 8, 1)
"""Threads of the last kernel: a warp for each row, 8 neighbours at once for each thread."""


@kernel(P="M N", scale_a="M SA", scale_b="SB N", bias="SC N", D="M N")
def scaled_and_biased(
    P: Any, scale_a: Any, scale_b: Any, bias: Any, D: Any, *, terms: frozenset[str], activation: str | None
) -> None:
    """``D = activation(scale_a * P * scale_b + bias)``, with the scales and the bias named in ``terms``."""
    tile = SPREAD.shape
    i, j = block_index(ceil_div(D.shape, tile))

    def broadcast(array: Any, dim: int) -> Any:
        shape = tuple(extent if at == dim else 1 for at, extent in enumerate(tile))
        at = (i, 0) if dim == 0 else (0, j)
        return load(array.tile(shape, at), SPREAD.projected(shape)).to(dtypes.f32)

    value = load(P.tile(tile, (i, j)), SPREAD).to(dtypes.f32)
    if "scale_a" in terms:
        value = value * broadcast(scale_a, 0)
    if "scale_b" in terms:
        value = value * broadcast(scale_b, 1)
    if "bias" in terms:
        value = value + broadcast(bias, 1)
    if activation is not None:
        value = ACTIVATIONS[activation](value)
    copy(saturated(value, D.dtype).to(D.dtype), D.tile(tile, (i, j)))


@kernel(A="M K", B="K N", scale_a="M", scale_b="N", bias="N", D="M N")
def in_three(
    A: Any,
    B: Any,
    scale_a: Any,
    scale_b: Any,
    bias: Any,
    D: Any,
    *,
    product: DType,
    terms: frozenset[str],
    activation: str | None,
) -> None:
    """The reference of the launches after the conversion, with the product rounded."""
    for m, n in tiles(D):
        acc = zeros()
        for k in steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        value = acc.to(product).to(dtypes.f32)
        if "scale_a" in terms:
            value = value * scale_a[m].to(dtypes.f32)[:, None]
        if "scale_b" in terms:
            value = value * scale_b[n].to(dtypes.f32)
        if "bias" in terms:
            value = value + bias[n].to(dtypes.f32)
        if activation is not None:
            value = ACTIVATIONS[activation](value)
        D[m, n] = saturated(value, D.dtype)


@dataclass
class ThreeLaunches:
    """``D = activation(scale_a * (A @ B) * scale_b + bias)`` by kernels in turn, all of them ours.

    Operands of another dtype than that of the multiplication are converted in memory, B with the zero points
    and scales of its groups; `matmul` multiplies them; a last kernel scales, adds the bias and rounds.

    Args:
        given: the arrays of `scaled_mm` by name, in the memory of the target; A and B of two dimensions.
        multiplied: the dtype of the multiplication.
        activation: the function of each element of the result.
        group: number of neighbours along K that share a scale; None: all of them.
        target: the target whose memory holds the arrays.
    """

    given: dict[str, Any]
    multiplied: DType
    activation: str | None
    group: int | None
    target: str
    out: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._wide = {}
        for name in ("a", "b"):
            info = describe(self.given[name])
            if info.dtype == self.multiplied and not (name == "b" and self.group is not None):
                continue
            # Memory for the converted operand, whose rows or columns are contiguous as those of the operand.
            by_rows = info.strides[-1] == 1
            wide = self._new(info.shape if by_rows else info.shape[::-1], self.multiplied)
            self._wide[name] = wide if by_rows else wide.T
        (m, _), (_, n) = (describe(self.given[name]).shape for name in ("a", "b"))
        self._product = self._new((m, n), output_dtype(self.multiplied))
        self.out = self._new((m, n), describe(self.given["out"]).dtype)
        of_sums = {"scale_a", "bias"} | ({"scale_b"} if self.group is None else set())
        self._terms = frozenset(of_sums & self.given.keys())
        # Scales and the bias with a number for each row or column, so that they broadcast.
        self._sides = {}
        for name in self._terms:
            array, shape = self.given[name], (m, 1) if name == "scale_a" else (1, n)
            if math.prod(array.shape) == math.prod(shape):
                self._sides[name] = array.reshape(*shape)
            else:
                number = np.asarray(device_get(array)).reshape(())
                self._sides[name] = device_put(np.full(shape, number), self.target)

    def _new(self, shape: tuple[int, ...], kind: DType) -> Any:
        return device_put(np.zeros(shape, kind.numpy), self.target)

    def launch(self) -> None:
        """Start all of them."""
        for name in self._wide:
            self._convert(name)
        a, b = (self._wide.get(name, self.given[name]) for name in ("a", "b"))
        matmul(a, b, self._product, target=self.target)
        sides = [self._sides.get(name, self._product) for name in ("scale_a", "scale_b", "bias")]
        bound = scaled_and_biased.bind(terms=self._terms, activation=self.activation)
        bound(self._product, *sides, self.out, target=self.target)

    def _convert(self, name: str) -> None:
        narrow, wide = self.given[name], self._wide[name]
        if describe(narrow).strides[-1] != 1:
            is_packed = isinstance(narrow, Packed)
            narrow, wide = packed(narrow.array.T, narrow.dtype) if is_packed else narrow.T, wide.T
        of_groups = {"scale_b", "zero_b"} & self.given.keys() if name == "b" and self.group else set()
        if not of_groups and not isinstance(narrow, Packed):
            widen(0).bind()(narrow, wide, target=self.target)
            return
        size = self.group or describe(wide).shape[1]
        stand_in = self.given[next(iter(of_groups))].T if of_groups else wide
        sides = [self.given[one].T if one in of_groups else stand_in for one in ("scale_b", "zero_b")]
        bound = widen_in_groups().bind(group=size, terms=frozenset(of_groups))
        bound(narrow, *sides, wide, target=self.target)

    def verified(self) -> StoredComparison:
        """Run it, and compare every element of the result and of converted operands.

        Raises:
            WrongResultError: a converted operand is wrong.
        """
        self.launch()
        return self.verify()

    def verify(self) -> StoredComparison:
        """Compare the arrays of the last launch, as `verified` does."""
        made = {name: np.asarray(device_get(array)) for name, array in self._operands.items()}
        for name in self._wide:
            if not np.array_equal(made[name], self._converted(name), equal_nan=True):
                raise WrongResultError(f"{name} is converted to {self.multiplied} wrongly")
        found = np.asarray(device_get(self.out))
        (m, n), number = found.shape, np.float32
        ones = {"scale_a": np.ones(m, number), "scale_b": np.ones(n, number), "bias": np.zeros(n, number)}
        ones |= {name: np.asarray(device_get(array)).reshape(-1) for name, array in self._sides.items()}
        given = {"A": made["a"], "B": made["b"], **ones}
        words = {"product": output_dtype(self.multiplied), "terms": self._terms}
        flow = in_three.bind(**words, activation=self.activation).flow(*given.values(), found)
        schedule = (
            plain(0)
            .bind(precision="exact")
            .schedule_for(made["a"], made["b"], np.asarray(device_get(self._product)), target=self.target)
        )
        assert schedule is not None, "the kernel is a dataflow kernel"
        return compare_flow(flow, {"D": found}, given, how=accumulation_of(schedule))

    @property
    def _operands(self) -> dict[str, Any]:
        """The operands of the product."""
        return {name: self._wide.get(name, self.given[name]) for name in ("a", "b")}

    def _converted(self, name: str) -> Array:
        """Convert an operand by NumPy, with the rounding of each step."""
        element = self.multiplied.numpy
        wide = _numbers(self.given[name]).astype(np.float32).astype(element)
        if name == "b" and self.group is not None:
            for array, change in (("zero_b", np.subtract), ("scale_b", np.multiply)):
                if array in self.given:
                    each = np.asarray(device_get(self.given[array])).astype(element)
                    wide = change(wide, each.repeat(self.group, axis=0)).astype(element)
        return wide

    @property
    def launches(self) -> int:
        """Number of kernels."""
        return len(self._wide) + 2

    @property
    def bytes(self) -> int:
        """Bytes that the launches read and write, every array once per launch."""
        sides = sum(
            _bytes(self.given[name])
            for name in ("scale_a", "scale_b", "bias", "zero_b")
            if name in self.given
        )
        converted = sum(_bytes(self.given[name]) + _bytes(wide) for name, wide in self._wide.items())
        multiplied = sum(map(_bytes, self._operands.values())) + _bytes(self._product)
        return converted + multiplied + _bytes(self._product) + sides + _bytes(self.out)


def _numbers(array: Any) -> Array:
    """Return an unpacked array in host memory."""
    if not isinstance(array, Packed):
        return np.asarray(device_get(array))
    held = np.asarray(device_get(array.array))
    along_rows = describe(array).strides[-1] == 1
    found = unpack(held if along_rows else held.T, array.dtype)
    return found if along_rows else found.T


def _bytes(array: Any) -> int:
    held = array.array if isinstance(array, Packed) else array
    return int(math.prod(held.shape)) * dtypes.dtype(held.dtype).bytes
