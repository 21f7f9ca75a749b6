"""The dtype of a result: that of ``out_dtype`` or of ``out``, if it loses no numbers.

Sums of integers must fit the dtype in which they are added up, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from tilewright import dtypes
from tilewright.dtypes import FP8, PACKED, DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError, LaunchError
from tilewright.ops.products import output_dtype
from tilewright.runtime.arrays import ArrayInfo
from tilewright.schedule.proposals_reference import SUPPORTED

ADDED = ("c", "bias", "residual")
"""The arrays that are added to the sums."""


MOST_IN_I32 = 2**31 // 128**2 - 1
"""Products of two i8 of which every sum fits i32."""


class ResultWanted(Protocol):
    """What is asked for besides arrays, as far as the result's dtype depends on it."""

    @property
    def alpha(self) -> complex:
        """What the product is multiplied by."""

    @property
    def beta(self) -> complex | None:
        """What ``c`` is multiplied by."""

    @property
    def activation(self) -> str | None:
        """The function of each element."""

    @property
    def out_dtype(self) -> DType | str | None:
        """The dtype that is asked for."""


def agreed(
    asked: DType | None, written: DType | None, natural: DType, said: tuple[object, object] | None = None
) -> DType:
    """The dtype of a result, of which an array to write and the caller say the same.

    Args:
        asked: the dtype that the caller asks for; None: none.
        written: that of the array to write; None: there is none.
        natural: the dtype where nobody says one.
        said: what errors call those of the array and of the caller; default: by their names.

    Raises:
        DTypeError: they are two.

    Example:
        >>> from tilewright.dtypes import f16, f32
        >>> agreed(f32, f32, f16), agreed(None, f32, f16), agreed(None, None, f16)
        (f32, f32, f16)
    """
    if asked is not None and written is not None and asked != written:
        out, named = said or (written, asked)
        raise DTypeError(f"out is {out}, and out_dtype={named}; nearest legal choice: one of them alone")
    return written or asked or natural


def check_whole_bytes(op: str, name: str, kind: DType, nearest: object) -> None:
    """Refuse numbers that share bytes, which these operations neither write nor add.

    Args:
        op: what errors call the operation.
        name: of the argument.
        kind: its dtype.
        nearest: what errors say of one that it may have.

    Raises:
        DTypeError: several of its numbers lie in a byte.
    """
    if kind.is_packed:
        shared = f"{kind.per_byte} of which share a byte"
        raise DTypeError(f"{op}: {name} is {kind}, {shared}; nearest legal choice: {nearest}")


def result_dtype(
    infos: Mapping[str, ArrayInfo],
    wanted: ResultWanted,
    op: str = "matmul",
    *,
    saturate: bool = False,
    fractions: Collection[str] = (),
    written: str = "out",
) -> DType:
    """The dtype of the result.

    Args:
        infos: the arrays, by the names of the arguments; what is written is ``out``.
        wanted: what is asked for.
        op: what errors call the product.
        saturate: whether the nearest integer, of those that there are, is what is wanted of any number.
        fractions: the arguments that make fractions of integers, besides those of `matmul`.
        written: what errors call the array ``out``.

    Raises:
        DTypeError: a mixture, a dtype that has no product, or a result that would lose fractions.
    """
    a = _multiplied(infos, op)
    natural = output_dtype(a)
    check_added(infos, op, natural)
    asked = None if wanted.out_dtype is None else dtype_named(wanted.out_dtype)
    made = agreed(asked, infos["out"].dtype if "out" in infos else None, natural)
    what = written if "out" in infos else "out_dtype"
    check_whole_bytes(op, what, made, f"{natural}, of which tw.pack makes {made}")
    if not natural.is_float and not made.is_float and not saturate:
        _check_integers(infos, made, natural, wanted, fractions)
    if made.components > 1 or (natural.is_float and not made.is_float and not saturate):
        why = "there are no imaginary parts" if made.components > 1 else "the fractions would be lost"
        raise DTypeError(f"{what} is {made}, a @ b is {natural}: {why}; nearest legal choice: {natural}")
    return made


def _multiplied(infos: Mapping[str, ArrayInfo], op: str) -> DType:
    """The dtype of both operands."""
    if (a := infos["a"].dtype) != (b := infos["b"].dtype):
        narrow = {*FP8, *PACKED, dtypes.i8}
        is_scaled = narrow & {a, b} and {a, b} <= narrow | {dtypes.f32, dtypes.f16, dtypes.bf16}
        nearest = "; nearest legal choice: tw.scaled_mm" if is_scaled else ": convert one of them first"
        raise DTypeError(f"{op} of {a} and {b}{nearest}")
    if a.name not in SUPPORTED:
        raise DTypeError(f"no {op} of {a} yet; nearest: {', '.join(SUPPORTED)}")
    return a


def _check_integers(
    infos: Mapping[str, ArrayInfo],
    made: DType,
    natural: DType,
    wanted: ResultWanted,
    fractions: Collection[str],
) -> None:
    """Sums of integers must fit the result, and nothing may make fractions of them."""
    if made.bits < natural.bits:
        raise DTypeError(f"a @ b is {natural}, which does not fit {made}; nearest: out_dtype={natural}")
    broken = [name for name in ("alpha", "beta") if not _is_whole(getattr(wanted, name) or 0)]
    broken += ["activation"] if wanted.activation not in (None, "relu") else []
    broken += [name for name in read_arrays(infos, wanted) if infos[name].dtype.is_float]
    broken += fractions
    if broken:
        raise DTypeError(
            f"{' and '.join(broken)}: fractions, which a result of {made} loses; nearest: out_dtype='f32'"
        )


def _is_whole(number: Any) -> bool:
    return isinstance(number, int) or float(number).is_integer()


def read_arrays(infos: Mapping[str, ArrayInfo], wanted: ResultWanted) -> list[str]:
    """Names of the arrays that are added to the sums; with ``beta=0`` nothing of ``c`` is read.

    Args:
        infos: the arrays, by the names of the arguments.
        wanted: what is asked for.
    """
    return [name for name in ADDED if name in infos and not (name == "c" and wanted.beta == 0)]


def check_added(infos: Mapping[str, ArrayInfo], op: str, natural: DType) -> None:
    """Refuse arrays that are not converted to the numbers of the sums that they are added to.

    Args:
        infos: the arrays, by the names of the arguments.
        op: what errors call the product.
        natural: the dtype of the product.

    Raises:
        DTypeError: one is complex, or several of its numbers share a byte.
    """
    for name in (*ADDED, "multiply"):
        if name not in infos:
            continue
        kind = infos[name].dtype
        check_whole_bytes(op, name, kind, natural)
        if kind.components > 1:
            raise DTypeError(
                f"{name} is {kind}, and sums of {infos['a'].dtype} are real; nearest legal choice: "
                f"{name}.real"
            )


def check_sums(
    op: str,
    infos: Mapping[str, ArrayInfo],
    depth: int,
    kind: DType,
    wanted: ResultWanted,
    *,
    changed: bool = False,
) -> None:
    """Sums that stay as they are wrap as NumPy's do; those with which something is done must fit.

    Args:
        op: what errors call the product.
        infos: of the arrays of the call that are read.
        depth: how many products are added up.
        kind: dtype of the result.
        wanted: what is asked for besides arrays.
        changed: whether something else is done with sums that stay i32.

    Raises:
        LaunchError: more products of i8 than fit, whose sums are changed or become another dtype.

    Example:
        >>> from types import SimpleNamespace
        >>> import numpy as np
        >>> from tilewright.dtypes import i32
        >>> from tilewright.runtime.arrays import describe
        >>> infos = {"a": describe(np.zeros((1, 200_000), np.int8))}
        >>> check_sums("matmul", infos, 200_000, i32, SimpleNamespace(alpha=1, activation=None))
    """
    if infos["a"].dtype != dtypes.i8 or depth <= MOST_IN_I32:
        return
    changed = (
        changed or wanted.alpha != 1 or wanted.activation is not None or not infos.keys().isdisjoint(ADDED)
    )
    if changed or kind != dtypes.i32:
        raise LaunchError(
            f"{op}: sums of {depth} products of i8 need not fit i32, in which they are added up; "
            f"nearest legal choice: operands of f16, or {MOST_IN_I32} products"
        )
