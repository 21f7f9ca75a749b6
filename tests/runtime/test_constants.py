"""Constants that are equal in Python give different kernels if a kernel can tell them apart."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from decimal import Decimal
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.ir.parser import parse_kernel
from tilewright.ir.printer import print_kernel
from tilewright.runtime.reads import exact

TARGETS = ("reference", "cpu")


class Pair(NamedTuple):
    first: Any
    second: Any


class Level(IntEnum):
    ONE = 1


@dataclass(frozen=True)
class Frozen:
    value: Any
    note: Any = field(default=None, compare=False)


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slotted) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


class Number(int):
    """An integer with more than its value."""


def number(value: int, unit: str) -> Number:
    made = Number(value)
    made.unit = unit  # type: ignore[attr-defined]
    return made


EQUAL_TO_PYTHON = [
    (2, 2.0),
    (1, True),
    (0, False),
    (0.0, -0.0),
    (1, Level.ONE),
    (2, np.int64(2)),
    (np.int32(2), np.int64(2)),
    (np.float32(0.0), np.float32(-0.0)),
    (1.0, np.float64(1.0)),
    (1.0, 1 + 0j),
    (0j, -0j),
    ((1, 2), Pair(1, 2)),
    ((1, (0.0, 2)), (1, (-0.0, 2))),
    (Pair(1, 2), Pair(1, 2.0)),
    (frozenset({1}), frozenset({True})),
    (Frozen(2), Frozen(2.0)),
    (Frozen((0.0,)), Frozen((-0.0,))),
    (Frozen(1, note=2), Frozen(1, note=2.0)),
    (Slotted(2), Slotted(2.0)),
    (Decimal("1.0"), Decimal("1.00")),
    (range(0), range(5, 5)),
    (number(2, "rows"), number(2, "columns")),
    ("a", type("Text", (str,), {})("a")),
]


@pytest.mark.parametrize(("one", "other"), EQUAL_TO_PYTHON, ids=lambda value: type(value).__name__)
def test_what_python_calls_equal_is_told_apart(one: Any, other: Any) -> None:
    assert one == other
    assert exact(one) != exact(other)
    assert exact(one) == exact(one)


def test_what_is_the_same_in_all_its_parts_is_one() -> None:
    for make in (
        lambda: math.nan,
        lambda: (math.nan, 1),
        lambda: Frozen((math.inf, "x", None)),
        lambda: Slotted(2.5),
        lambda: np.float16(0.1),
        lambda: tw.atoms.MMA_F16,
        lambda: number(2, "rows"),
    ):
        assert exact(make()) == exact(make())
        assert hash(exact(make())) == hash(exact(make()))


@given(st.lists(st.floats(), max_size=3), st.lists(st.floats(), max_size=3))
def test_floats_are_told_apart_by_their_bits(one: list[float], other: list[float]) -> None:
    bits = [struct.pack(f"{len(x)}d", *x) for x in (one, other)]
    assert (exact(tuple(one)) == exact(tuple(other))) == (bits[0] == bits[1])


@tw.kernel(X="N")
def power(X, *, s):
    """A kernel whose result depends on the type of ``s``: 3 for the integer 2, 14 for a float."""
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    part = X.tile((64,), (n,))
    value = 3.0 if isinstance(s, int) else 14.0
    tw.copy(tw.fragment(part.partition((32,)), fill=value), part)


@tw.kernel(X="N")
def reciprocal(X, *, s):
    """The sign of a zero decides the result."""
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    part = X.tile((64,), (n,))
    zero = s[1][0] if isinstance(s, tuple) else s.value if isinstance(s, Frozen) else s
    tw.copy(tw.fragment(part.partition((32,)), fill=math.copysign(1.0, zero)), part)


@pytest.mark.parametrize("target", TARGETS)
def test_bind_tells_2_from_2_point_0(target: str) -> None:
    x = np.zeros(100, np.float32)
    for s, expected in ((2, 3.0), (2.0, 14.0), (2, 3.0), (True, 3.0), (np.float32(2), 14.0), (1, 3.0)):
        x.fill(np.nan)
        assert power(x, s=s, target=target).target == target
        assert (x == expected).all()
    assert power.bind(s=2) is power.bind(s=2)
    assert power.bind(s=1) is not power.bind(s=True)


@pytest.mark.parametrize("wrap", [lambda z: z, lambda z: (1, (z, 2)), Frozen, np.float64], ids=range(4))
def test_bind_tells_zero_from_minus_zero(wrap: Any) -> None:
    x = np.zeros(100, np.float32)
    for zero in (0.0, -0.0, 0.0):
        x.fill(np.nan)
        reciprocal(x, s=wrap(zero), target="cpu")
        assert (x == math.copysign(1.0, zero)).all()


def test_a_nan_is_bound_once() -> None:
    assert power.bind(s=float("nan")) is power.bind(s=-float("-nan"))


@pytest.mark.parametrize(
    "bad", [[1], (1, [2]), {1: 2}, Frozen([1]), np.zeros(2)], ids=lambda value: type(value).__name__
)
def test_what_is_not_hashable_is_refused(bad: Any) -> None:
    with pytest.raises(tw.LaunchError, match=r"kernel power: constant s=.* is not hashable; use a tuple"):
        power.bind(s=bad)


def test_an_object_that_is_hashable_though_its_parts_are_not_is_itself() -> None:
    class Named:
        def __init__(self, name: str, parts: list[int]) -> None:
            self.name, self.parts = name, parts

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and self.name == other.name

        def __hash__(self) -> int:
            return hash(self.name)

    one, other = Named("x", [1]), Named("x", [2])
    assert exact(one) == exact(one) != exact(other)


@pytest.mark.parametrize("target", TARGETS)
def test_an_integer_argument_is_no_boolean_whatever_came_before(target: str) -> None:
    @tw.kernel(X="N", turns=int)
    def count(X, turns):
        part = X.tile((64,), (tw.block_index(tw.ceil_div(X.shape[0], 64)),))
        for _ in tw.range(turns):
            tw.copy(tw.load(part.partition((32,))) + 1.0, part)

    bound, x = count.bind(), np.zeros(64, np.float32)
    for _ in range(2):
        bound(x, 1, target=target)
        for wrong in (True, 1.0, np.True_):
            with pytest.raises(tw.LaunchError, match=r"turns=.* must be an integer"):
                bound(x, wrong, target=target)
        bound(x, np.int64(1), target=target)
    assert (x == 4).all()


@pytest.mark.parametrize("target", TARGETS)
def test_zeros_of_both_signs_live_in_one_kernel(target: str) -> None:
    """They differ in the kernel's text, in the parsed kernel, and in the compiled code."""

    @tw.kernel(X="N", Y="N", Z="N")
    def zeros(X, Y, Z):
        for array, value in ((X, 0.0), (Y, -0.0), (Z, 1.0)):
            part = array.tile((32,), (0,)).partition((32,))
            tw.copy(tw.fragment(part, fill=value), part)

    arrays = [np.full(32, np.nan, np.float32) for _ in range(3)]
    executable = zeros(*arrays, target=target)
    assert [math.copysign(1.0, float(array[0])) for array in arrays] == [1.0, -1.0, 1.0]
    assert [abs(float(array[0])) for array in arrays] == [0.0, 0.0, 1.0]
    text = print_kernel(executable.kernel)
    assert "-0.0" in text
    assert print_kernel(parse_kernel(text)) == text
    assert "= -0.0f;" in zeros.compile(*arrays, target="cuda", arch="sm_90a").source
