"""The dtype of a result: its choice, and the checks of ``out_dtype`` and ``out``.

The dtype must not lose fractions or imaginary parts.  Sums of integers must also fit the accumulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tilewright import dtypes
from tilewright.dtypes import FP8, PACKED, DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError, LaunchError
from tilewright.ops.products import output_dtype
from tilewright.ops.wanted import Wanted
from tilewright.runtime.frameworks import Strided
from tilewright.schedule.question import SUPPORTED

ADDED = ("c", "bias", "residual")
"""The arrays that are added to the sums."""

SCALES = ("scale_a", "scale_b")
"""The arrays that scale the sums."""


MOST_IN_I32 = 2**31 // 128**2 - 1
"""Most products of two i8 whose sum always fits i32."""


def agreed(
    asked: DType | None, written: DType | None, natural: DType, said: tuple[object, object] | None = None
) -> DType:
    """Return the dtype of a result, on which ``out`` and ``out_dtype`` must agree.

    Args:
        asked: the caller's ``out_dtype``, or None.
        written: the dtype of ``out``, or None without ``out``.
        natural: the dtype if both are None.
        said: names of both dtypes in the message, ``out`` first; default: the dtypes' own names.

    Raises:
        DTypeError: ``asked`` and ``written`` differ.

    Example:
        >>> from tilewright.dtypes import f16, f32
        >>> agreed(f32, f32, f16), agreed(None, f32, f16), agreed(None, None, f16)
        (f32, f32, f16)
    """
    if asked is not None and written is not None and asked != written:
        out, named = said or (written, asked)
        raise DTypeError(f"out is {out}, and out_dtype={named}", "one of them alone")
    return written or asked or natural


def asked_dtype(kinds: Mapping[str, DType], wanted: Wanted, natural: DType) -> DType:
    """Return the dtype of ``out`` or ``out_dtype``, or else the natural one.

    Args:
        kinds: dtypes of the arrays, by the names of the arguments.
        wanted: the other arguments of the call.
        natural: the dtype if the call has neither.

    Raises:
        DTypeError: ``out`` and ``out_dtype`` differ.
    """
    asked = None if wanted.out_dtype is None else dtype_named(wanted.out_dtype)
    return agreed(asked, kinds.get("out"), natural)


def check_whole_bytes(op: str, name: str, kind: DType, nearest: object) -> None:
    """Refuse packed dtypes, which these operations neither write nor add.

    Args:
        op: the operation's name in messages.
        name: the argument.
        kind: its dtype.
        nearest: the dtype that the message recommends.

    Raises:
        DTypeError: several numbers of the dtype share a byte.
    """
    if kind.is_packed:
        shared = f"and {kind.per_byte} of its numbers share a byte"
        raise DTypeError(f"{op}: {name} is {kind}, {shared}", nearest)


def result_dtype(
    kinds: Mapping[str, DType], wanted: Wanted, op: str = "matmul", written: str = "out"
) -> DType:
    """Return the dtype of the result.

    Args:
        kinds: dtypes of the arrays, by the names of the arguments; the result is ``out``.
        wanted: the other arguments of the call.
        op: the operation's name in messages.
        written: the name of ``out`` in messages.

    Raises:
        DTypeError: two dtypes, a dtype without products, or a result that would lose fractions.
    """
    natural = output_dtype(_multiplied(kinds, op))
    check_added(kinds, op, natural)
    made = asked_dtype(kinds, wanted, natural)
    what = written if "out" in kinds else "out_dtype"
    check_whole_bytes(op, what, made, f"{natural}, then tw.pack to get {made}")
    if not natural.is_float and not made.is_float and not wanted.saturate:
        # Refuse results too narrow for integer sums, and terms that would make fractions of these sums.
        if made.bits < natural.bits:
            raise DTypeError(f"a @ b is {natural}, which does not fit {made}; nearest: out_dtype={natural}")
        for name in (*read_arrays(kinds, wanted), *({"multiply"} & kinds.keys())):
            own = kinds[name]
            if not own.is_float and (own.bits > made.bits or (own.bits == made.bits and own != made)):
                text = f"{name} is {own}, and a result of {made} cannot hold all its values"
                raise DTypeError(text, f"{name} as {made}, or out_dtype='f64'")
        broken = []
        for name in ("alpha", "beta"):
            number = getattr(wanted, name) or 0
            if not isinstance(number, int) and not float(number).is_integer():
                broken.append(name)
        broken += ["activation"] if wanted.activation not in (None, "relu") else []
        broken += [name for name in SCALES if name in kinds]
        broken += [name for name in read_arrays(kinds, wanted) if kinds[name].is_float]
        if wanted.derivative is None and "multiply" in kinds and kinds["multiply"].is_float:
            broken.append("multiply")
        broken += ["derivative"] if wanted.derivative not in (None, "relu") else []  # relu has 0 or 1
        broken += ["dropout"] if wanted.dropped.makes_fractions else []
        if broken:
            near = "nearest: out_dtype='f32'"
            text = f"{' and '.join(broken)}: the result has fractions, and {made} cannot hold them; {near}"
            raise DTypeError(text)
    if made.components > 1 or (natural.is_float and not made.is_float and not wanted.saturate):
        why = "the result has no imaginary parts" if made.components > 1 else "the fractions would be lost"
        raise DTypeError(f"{what} is {made}, a @ b is {natural}: {why}", natural)
    return made


def _multiplied(kinds: Mapping[str, DType], op: str) -> DType:
    """Check that both operands have one supported dtype, and return it."""
    if (a := kinds["a"]) != (b := kinds["b"]):
        narrow = {*FP8, *PACKED, dtypes.i8}
        is_scaled = narrow & {a, b} and {a, b} <= narrow | {dtypes.f32, dtypes.f16, dtypes.bf16}
        nearest = "; nearest legal choice: tw.scaled_mm" if is_scaled else ": convert one of them first"
        raise DTypeError(f"{op} of {a} and {b}{nearest}")
    if a.name not in SUPPORTED:
        raise DTypeError(f"{op} of {a} is not supported; nearest: {', '.join(SUPPORTED)}")
    return a


def read_arrays(kinds: Mapping[str, DType], wanted: Wanted) -> list[str]:
    """Return the names of the arrays that are added to the sums; ``c`` is not read if ``beta=0``.

    Args:
        kinds: dtypes of the arrays, by the names of the arguments.
        wanted: the other arguments of the call.
    """
    return [name for name in ADDED if name in kinds and not (name == "c" and wanted.beta == 0)]


def check_added(kinds: Mapping[str, DType], op: str, natural: DType) -> None:
    """Refuse complex or packed arrays as terms of a real product.

    Args:
        kinds: dtypes of the arrays, by the names of the arguments.
        op: the operation's name in messages.
        natural: the dtype of the product.

    Raises:
        DTypeError: an array is complex or packed.
    """
    for name in (*ADDED, "multiply"):
        if name not in kinds:
            continue
        kind = kinds[name]
        check_whole_bytes(op, name, kind, natural)
        if kind.components > 1:
            raise DTypeError(f"{name} is {kind}, and sums of {kinds['a']} are real", f"{name}.real")


def check_sums(op: str, kinds: Mapping[str, DType], depth: int, kind: DType, wanted: Wanted) -> None:
    """Refuse sums of i8 products that may overflow i32 before a later step uses them.

    Sums that are themselves the result may wrap, as NumPy's do.

    Args:
        op: the operation's name in messages.
        kinds: dtypes of the arrays that the call reads.
        depth: the number of products in a sum.
        kind: dtype of the result.
        wanted: the other arguments of the call.

    Raises:
        LaunchError: sums that may overflow are converted, or are changed by another term.

    Example:
        >>> from tilewright.dtypes import i8, i32
        >>> check_sums("matmul", {"a": i8, "b": i8}, 200_000, i32, Wanted())
    """
    if kinds["a"] != dtypes.i8 or depth <= MOST_IN_I32:
        return
    changed = wanted.alpha != 1 or wanted.activation is not None or wanted.saturate
    changed |= not kinds.keys().isdisjoint((*ADDED, *SCALES, "multiply")) or wanted.dropped.probability > 0
    if changed or kind != dtypes.i32:
        text = f"{op}: sums of {depth} products of i8 may overflow the i32 accumulator"
        raise LaunchError(text, f"operands of f16, or {MOST_IN_I32} products at most")


# ----------------------------------------------------------------
#
# Products of integers and truth values other than i8 by i8.
#
# Sums wrap, so only the lowest bits of operands and sums matter. An operand as wide as the result is
# multiplied as it lies in memory, signed or not; a narrower one is extended first. Two operands of 8 bits are
# multiplied as i8, for which there are matrix instructions, if their result has 8 bits or if i8 holds both. A
# truth value is 0 or 1, and a sum is true if it is not 0.

BYTES = (dtypes.i8, dtypes.u8, dtypes.boolean)
"""Operands of 8 bits."""

FLOATS = (dtypes.f16, dtypes.f32, dtypes.f64)
"""Float results of integer products, if they hold all integers of NumPy's result dtype."""


class Whole(NamedTuple):
    """A product of integers.

    Args:
        multiplied: dtype in which operands are multiplied.
        result: dtype of the result.
    """

    multiplied: DType
    result: DType

    def read(self, dtype: DType, *, on_gpu: bool) -> DType:
        """Return the dtype that the kernel declares for an operand.

        A kernel that reads truth values converts each byte to 0 or 1.  On a GPU, matrix instructions read
        these bytes as i8: a conversion would keep operands out of shared memory.

        Args:
            dtype: the operand's dtype, any integer or truth values.
            on_gpu: whether a GPU multiplies.
        """
        if dtype == dtypes.boolean and not (on_gpu and self.multiplied == dtypes.i8):
            return dtype
        is_read = dtype.bits == self.multiplied.bits and not self.multiplied.is_float
        return self.multiplied if is_read else dtype

    def seen(self, given: Strided, *, on_gpu: bool) -> Strided:
        """Return an operand with the dtype that the kernel declares for it.

        Args:
            given: the operand.
            on_gpu: whether a GPU multiplies.
        """
        return Strided(given.array, replace(given.info, dtype=self.read(given.info.dtype, on_gpu=on_gpu)))


def natural_dtype(a: DType, b: DType) -> DType:
    """Return the dtype of a product of integers: NumPy's, but i32 instead of i8.

    Args:
        a: dtype of the operand on the left.
        b: dtype of the operand on the right.

    Example:
        >>> from tilewright.dtypes import boolean, i8, i16, i64, u8, u32, u64
        >>> natural_dtype(i8, u8), natural_dtype(boolean, boolean), natural_dtype(i8, i8)
        (i16, boolean, i32)
        >>> natural_dtype(u32, i16), natural_dtype(u64, i64)
        (i64, f64)
    """
    made = dtype_named(np.result_type(a.numpy, b.numpy))
    return dtypes.i32 if made == dtypes.i8 else made


def whole_product(kinds: Mapping[str, DType], wanted: Wanted) -> Whole | None:
    """Return the dtypes of a product of integers; None for two i8, or if an operand is not an integer.

    Args:
        kinds: dtypes of the arrays, by the names of the arguments of `matmul`.
        wanted: the other arguments.

    Raises:
        DTypeError: the result does not hold the product, or an argument would change sums that wrap.
    """
    a, b = kinds["a"], kinds["b"]
    if a == b == dtypes.i8 or any(one.kind not in ("int", "uint", "bool") or one.is_packed for one in (a, b)):
        return None
    natural = natural_dtype(a, b)
    made = asked_dtype(kinds, wanted, natural)
    what = "out" if "out" in kinds else "out_dtype"
    is_known = made in FLOATS or (made.kind in ("int", "uint", "bool") and not made.is_packed)
    if not is_known or not np.can_cast(natural.numpy, made.numpy, "safe"):
        raise DTypeError(
            f"matmul: {what} is {made}, and the product of {a} and {b} is {natural}, and {made} cannot hold "
            f"all values of {natural}",
            natural,
        )
    check_added(kinds, "matmul", natural)
    changed = read_arrays(kinds, wanted)
    changed += ["alpha"] if wanted.alpha not in (0, 1) else []
    changed += ["activation"] if wanted.activation is not None else []
    changed += ["multiply"] if "multiply" in kinds else []
    changed += ["dropout"] if wanted.dropped.probability else []
    changed += ["saturate"] if wanted.saturate else []
    if changed:
        raise DTypeError(
            f"matmul: {', '.join(changed)} with operands of {a} and {b}, whose sums wrap around on overflow",
            "operands of f64, or no further terms",
        )
    if made.is_float:
        return Whole(made, made)
    fits_i8 = made.bits == dtypes.u8.bits or (made == dtypes.i32 and dtypes.u8 not in (a, b))
    if a in BYTES and b in BYTES and fits_i8:
        return Whole(dtypes.i8, made)
    return Whole(dtypes.u32 if made.bits <= dtypes.u32.bits else dtypes.u64, made)
