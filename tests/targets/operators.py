"""Every operator of fragments and NumPy's results, for the tests of all targets."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.dtypes import DType
from tilewright.functions.conversions import convert, widen

FLOATS = (tw.f64, tw.f32, tw.f16, tw.bf16, tw.f8e4m3, tw.f8e5m2)
INTEGERS = (tw.i64, tw.i32, tw.i16, tw.i8, tw.u64, tw.u32, tw.u16, tw.u8)


@dataclass(frozen=True)
class Operator:
    """An expression of two fragments.

    Args:
        apply: computes the expression from fragments or arrays.
        of_floats: whether floats have it.
        of_integers: whether integers have it.
        exact: whether targets give NumPy's bits; else one unit in the last place of f32 is allowed.
        shift: whether the second operand is a count; NumPy does not define negative counts.
    """

    apply: Callable[[Any, Any], Any]
    of_floats: bool = True
    of_integers: bool = True
    exact: bool = True
    shift: bool = False


def _maximum(x: Any, y: Any) -> Any:
    return np.maximum(x, y) if isinstance(x, np.ndarray) else tw.maximum(x, y)


def _minimum(x: Any, y: Any) -> Any:
    return np.minimum(x, y) if isinstance(x, np.ndarray) else tw.minimum(x, y)


def _least(x: Any) -> int:
    return int(np.iinfo(x.dtype if isinstance(x, np.ndarray) else x.dtype.numpy).min)


OPERATORS = {
    "+": Operator(operator.add),
    "-": Operator(operator.sub),
    "*": Operator(operator.mul),
    "/": Operator(operator.truediv),
    "//": Operator(operator.floordiv),
    "%": Operator(operator.mod),
    "**": Operator(operator.pow, of_integers=False, exact=False),
    "** 2": Operator(lambda x, y: x**2),
    "** 3": Operator(lambda x, y: x**3, exact=False),
    "** 0": Operator(lambda x, y: x**0),
    "** 0.5": Operator(lambda x, y: x**0.5, of_integers=False),
    "** -1": Operator(lambda x, y: x**-1, of_integers=False),
    "// 3": Operator(lambda x, y: x // 3),
    "% 3": Operator(lambda x, y: x % 3),
    "7 //": Operator(lambda x, y: 7 // x),
    "7 %": Operator(lambda x, y: 7 % x),
    "7 /": Operator(lambda x, y: 7 / x),
    "/ 7": Operator(lambda x, y: x / 7),
    "&": Operator(operator.and_, of_floats=False),
    "|": Operator(operator.or_, of_floats=False),
    "^": Operator(operator.xor, of_floats=False),
    "5 &": Operator(lambda x, y: 5 & x, of_floats=False),
    "| 5": Operator(lambda x, y: x | 5, of_floats=False),
    "~": Operator(lambda x, y: ~x, of_floats=False),
    "<<": Operator(operator.lshift, of_floats=False, shift=True),
    ">>": Operator(operator.rshift, of_floats=False, shift=True),
    "<< 2": Operator(lambda x, y: x << 2, of_floats=False),
    ">> 2": Operator(lambda x, y: x >> 2, of_floats=False),
    "1 <<": Operator(lambda x, y: 1 << y, of_floats=False, shift=True),
    "neg": Operator(lambda x, y: -x),
    "pos": Operator(lambda x, y: +x),
    "abs": Operator(lambda x, y: abs(x)),
    "maximum": Operator(_maximum),
    "minimum": Operator(_minimum),
    "==": Operator(operator.eq),
    "!=": Operator(operator.ne),
    ">": Operator(operator.gt),
    ">= 3": Operator(lambda x, y: x >= 3),
    # What a compiler makes true if it takes for granted that nothing overflows, and what may be unsigned.
    "x + 1 > x": Operator(lambda x, y: x + 1 > x, of_floats=False),
    "x - 1 < x": Operator(lambda x, y: x - 1 < x, of_floats=False),
    "x * 2 // 2": Operator(lambda x, y: x * 2 // 2, of_floats=False),
    "-x < 0": Operator(lambda x, y: (-x < 0) & (x > 0), of_floats=False),
    "the least": Operator(lambda x, y: (x < _least(x)) | (_maximum(x, _least(x)) != x), of_floats=False),
    "masks": Operator(lambda x, y: (x > 3) & ~(x < y) | (y == 1) ^ (x != y)),
}
"""Each by what an author sees."""


def operators_of(dtype: DType) -> dict[str, Operator]:
    """Return the operators of a dtype."""
    found = {name: o for name, o in OPERATORS.items() if (o.of_floats if dtype.is_float else o.of_integers)}
    if dtype == tw.f64:
        found.pop("**")  # refused: no target raises f64 to a power that only the kernel knows
    return found


@np.errstate(all="ignore")
def result_of(operator: Operator, dtype: DType) -> DType:
    """Return the dtype of a result in an output array."""
    x = np.ones(1, dtype.numpy)
    made = operator.apply(*(widen(v, dtype) for v in (x, x)))
    if made.dtype == bool:
        return tw.u8
    return tw.f32 if made.dtype.kind == "f" and not dtype.is_float else dtype


def kernel_of(dtype: DType, tile: int = 512) -> Any:
    """Return the kernel that applies every operator of a dtype to X and Y; its outputs are O0, O1, ..."""
    table = operators_of(dtype)
    names = [f"O{at}" for at in range(len(table))]
    lines = [
        f"def operators_of_{dtype}(X, Y, {', '.join(names)}):",
        "    n = tw.block_index(tw.ceil_div(X.shape[0], TILE))",
        "    x, y = (tw.load(T.tile((TILE,), (n,)).partition((32,))) for T in (X, Y))",
        *(
            f"    tw.copy(stored(table[{name!r}].apply(x, y)), {output}.tile((TILE,), (n,)))"
            for name, output in zip(table, names, strict=True)
        ),
    ]
    scope = {"tw": tw, "TILE": tile, "table": table, "stored": _stored}
    exec("\n".join(lines), scope)  # kernels take no *outputs
    specs = dict.fromkeys(("X", "Y", *names), "N")
    return tw.kernel(**specs)(scope[f"operators_of_{dtype}"])


def _stored(made: Any) -> Any:
    return made.to(tw.u8) if str(made.dtype) == "boolean" else made


@np.errstate(all="ignore")
def operands(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of special values, and random ones; for floats also multiples, and distant numbers."""
    rng = np.random.default_rng(dtype.bits)
    if dtype.is_float:
        special = [0.0, -0.0, 1, -1, 2, 3, -7, 0.5, np.inf, -np.inf, np.nan, 1e-3]
        wide = rng.standard_normal((2, 2000)) * np.exp2(rng.integers(-20, 20, (2, 2000)))
        wide[0, :500] = np.round(wide[0, :500]) * wide[1, :500]
    else:
        ends = np.iinfo(dtype.numpy)
        numbers = (0, 1, -1, 2, 3, -7, 9, ends.min, ends.max, ends.max - 1)
        special = [n for n in numbers if ends.min <= n <= ends.max]
        wide = rng.integers(max(ends.min, -200), min(ends.max, 200), (2, 2000), endpoint=True).astype(object)
        wide[0, :1000] = rng.integers(ends.min, ends.max, 1000, endpoint=True, dtype=dtype.numpy)
        wide[1, 1000:1500] = rng.integers(0, dtype.bits + 2, 500)
    pairs = np.array(np.meshgrid(np.array(special, object), np.array(special, object))).reshape(2, -1)
    x, y = np.concatenate([pairs, wide], axis=1).astype(dtype.numpy)
    return np.ascontiguousarray(x), np.ascontiguousarray(y)


def outputs(dtype: DType, count: int) -> dict[str, np.ndarray]:
    """Return poisoned outputs, by name."""
    return {
        f"O{at}": np.full(count, 77, result_of(o, dtype).numpy)
        for at, o in enumerate(operators_of(dtype).values())
    }


def compare(dtype: DType, x: np.ndarray, y: np.ndarray, made: dict[str, np.ndarray]) -> None:
    """Compare with NumPy's results, exactly or within the operator's bound."""
    for (name, o), found in zip(operators_of(dtype).items(), made.values(), strict=True):
        want, kept = _expected(o, dtype, x, y)
        found, want = found[kept], want[kept]
        if found.dtype.kind in "iu":
            np.testing.assert_array_equal(found, want, err_msg=f"{name} of {dtype}")
            continue
        # bf16 and fp8 are compared as the numbers that they are.
        got, wanted = (v.astype(np.float64) for v in (found, want))
        bound = 0.0 if o.exact else max(2 * result_of(o, dtype).unit_roundoff, 2.0**-21 * (dtype.bits < 64))
        with np.errstate(all="ignore"):
            near = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
            near |= np.abs(got - wanted) <= bound * np.abs(wanted) + (0 if o.exact else 2.0**-140)
        bad = np.flatnonzero(~near)
        assert not bad.size, (
            f"{name} of {dtype}: {bad.size} wrong, e.g. x={x[kept][bad[0]]!r} y={y[kept][bad[0]]!r}: "
            f"{found[bad[0]]!r}, not {want[bad[0]]!r}"
        )


@np.errstate(all="ignore")
def _expected(o: Operator, dtype: DType, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return NumPy's result, and where it is defined."""
    kept = np.ones(x.shape, bool)
    result = result_of(o, dtype)
    if o.shift:
        kept = (y >= 0) & (y < dtype.bits)
    if dtype.is_float:
        made = o.apply(widen(x, dtype), widen(y, dtype))
        if made.dtype == bool:
            return made.astype(np.uint8), kept
        rounded = made if made.dtype == dtype.numpy else convert(made.astype(np.float32), tw.f32, dtype)
        return rounded, kept
    if result == tw.f32:  # NumPy divides integers in f64
        return o.apply(x.astype(np.float64), y.astype(np.float64)).astype(np.float32), kept
    made = o.apply(x, np.where(kept, y, 0).astype(y.dtype) if o.shift else y)
    return made.astype(result.numpy), kept
