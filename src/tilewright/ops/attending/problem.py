"""Problems of attention: checks of a call's arrays, and the views of them that kernels take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import Any, NamedTuple, NoReturn

import numpy as np

from tilewright.dtypes import DType, bf16, boolean, f16, f32, i32, i64
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError, LaunchError
from tilewright.ops.results import agreed
from tilewright.ops.wanted import NO_DROPOUT, Dropout
from tilewright.runtime.arrays import ArrayInfo, describe, elements
from tilewright.runtime.frameworks import memory_of
from tilewright.targets.target import HOST

SUPPORTED = (f16, bf16, f32)
ONE_OF = f"one of {', '.join(map(str, SUPPORTED))}"
"""Dtypes of arrays, and the end of messages that refuse another one."""

MOST_COLUMNS, MOST_OF_GRADIENTS = 512, 256
"""Most columns of queries, keys and values, and of those that have gradients."""

FEW_ROWS = 16
"""Most rows of a head at which heads that share keys are viewed as one head: the rows of one MMA."""

MOST_SCALE = 2.0**64
"""Upper bound of scales whose exponent fits f32."""


MOST_WINDOW = 2**31 - 1
"""Upper bound of windows that kernels see: the largest i32."""

LEAST_CAP = 2.0**-40
"""Least legal `soft_cap`; the largest is its reciprocal."""

LAST = "last"
"""Value of `diagonal` for masks in which the last row sees the last key."""

LENGTHS = "k_lengths"
"""Name of the array with the number of keys of each batch."""

PAGES = "k_pages"
"""Name of the array with the page numbers of each batch."""

OFFSETS = {"q_offsets": "q", "k_offsets": "k"}
"""Arrays of the bounds of packed sequences, each with the array whose rows they bound."""


class AttentionWords(NamedTuple):
    """The arguments of `attention` besides its arrays."""

    causal: bool
    diagonal: int | str
    scale: float | None
    return_lse: bool = False
    target: str | None = None
    out_dtype: DType | str | None = None
    window: int | None = None
    soft_cap: float | None = None
    op: str = "attention"
    dropped: Dropout = NO_DROPOUT

    def check(self) -> None:
        """Refuse invalid arguments, before any array is read.

        Raises:
            LaunchError: a diagonal or a window without a mask, or a scale or a bound of scores that is out of
                range.
        """
        if isinstance(self.diagonal, str) and self.diagonal != LAST:
            raise LaunchError(f"{self.op}: diagonal={self.diagonal!r}", f"{LAST!r}, or an integer")
        if self.diagonal and not self.causal:
            text = f"{self.op}: diagonal={self.diagonal!r} moves the causal mask, and causal is False"
            raise LaunchError(text, "causal=True")
        if self.window is not None and not self.causal:
            text = f"{self.op}: window={self.window} counts keys up to the diagonal, and causal is False"
            raise LaunchError(text, "causal=True")
        if self.window is not None and self.window < 1:
            raise LaunchError(f"{self.op}: window={self.window}", "1, a key for each row")
        if self.soft_cap is not None and not LEAST_CAP <= self.soft_cap <= 1 / LEAST_CAP:
            limit = min(max(self.soft_cap, LEAST_CAP), 1 / LEAST_CAP) if self.soft_cap > 0 else 1.0
            near = f"{limit:g}, or None"
            raise LaunchError(f"{self.op}: soft_cap={self.soft_cap}", near)
        if self.scale is not None and not abs(self.scale) < MOST_SCALE:
            near = "None, which is 1 / sqrt(D)" if isnan(self.scale) else f"a number below {MOST_SCALE:g}"
            raise LaunchError(f"{self.op}: scale={self.scale}", near)


def result_shape(infos: Mapping[str, ArrayInfo]) -> tuple[int, ...]:
    """Check that the arrays fit each other, and return the shape of the result.

    Raises:
        LaunchError: shapes do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    kinds = {name: infos[name].dtype for name in ("q", "k", "v")}
    if len(set(kinds.values())) > 1:
        listed = ", ".join(f"{name} is {kind}" for name, kind in kinds.items())
        raise DTypeError(f"{_called(infos)}: {listed}", "one dtype")
    if infos["q"].dtype not in SUPPORTED:
        raise DTypeError(f"{_called(infos)} of {infos['q'].dtype}", ONE_OF)
    q, k, v = (infos[name].shape for name in ("q", "k", "v"))
    if "q_offsets" in infos or "k_offsets" in infos:
        _check_packed(infos)
        q, k, v = ((h, t, d) for t, h, d in (q, k, v))  # the checks below have heads before rows
    if not 2 <= len(q) <= 4 or {len(k), len(v)} != {len(q)}:
        _refuse(infos, "(B, H, M, D), (B, G, N, D) and (B, G, N, E); or without B; or without heads")
    if k[:-1] != v[:-1]:
        _refuse(infos, f"v with shape ({', '.join(map(str, (*k[:-1], v[-1])))}), one value for each key")
    if q[-1] != k[-1]:
        _refuse(infos, f"k with {q[-1]} columns, as q has")
    if q[:-3] != k[:-3]:
        _refuse(infos, f"k and v with {q[0]} batches, as q has")
    if len(q) > 2 and not k[-3] and q[-3]:
        _refuse(infos, f"k and v with {q[-3]} heads, as q has, or a divisor of that number")
    if len(q) > 2 and k[-3] and q[-3] % k[-3]:
        _refuse(
            infos,
            "a number of heads of q that is a multiple of the heads of k, as "
            f"{max(q[-3] // k[-3], 1) * k[-3]}",
        )
    for name, columns in (("q", q[-1]), ("v", v[-1])):
        if not 1 <= columns <= MOST_COLUMNS:
            _refuse(infos, f"{name} with {min(max(columns, 1), MOST_COLUMNS)} columns")
    shape = (*infos["q"].shape[:-1], v[-1])
    if "lse" in infos and infos["lse"].dtype != f32:
        raise DTypeError(f"{_called(infos)}: lse is {infos['lse'].dtype}", "f32")
    if "lse" in infos and infos["lse"].shape != shape[:-1]:
        _refuse(infos, f"lse with shape {shape[:-1]}")
    if "out" in infos and infos["out"].shape != shape:
        _refuse(infos, f"out with shape {shape}")
    if "sinks" in infos:
        heads = q[-3] if len(q) > 2 else 1
        if infos["sinks"].shape != (heads,):
            _refuse(infos, f"sinks with shape {(heads,)}, one for each head of q")
        _check_dtype(infos, "sinks")
    if LENGTHS in infos:
        _check_lengths(infos, q[0] if len(q) == 4 else 1)
    if "bias" in infos:
        whole, given = (*q[:-1], k[-2]), infos["bias"].shape
        fits = len(given) <= len(whole) and all(
            one in (1, extent) for one, extent in zip(reversed(given), reversed(whole), strict=False)
        )
        if not fits:
            _refuse(infos, f"bias with shape {whole}, or one that NumPy broadcasts to it")
        _check_dtype(infos, "bias")
    return shape


def _check_packed(infos: Mapping[str, ArrayInfo]) -> None:
    """Check the arrays of packed sequences, besides what all problems of attention need.

    Raises:
        LaunchError: shapes do not fit, or there is a bias.
        DTypeError: offsets that are no integers of 32 or 64 bits.
    """
    if "q_offsets" not in infos:
        raise LaunchError(f"{_called(infos)}: k_offsets without q_offsets", "both, or q_offsets")
    if "bias" in infos:
        raise LaunchError(f"{_called(infos)}: bias with q_offsets", "no bias, or a call for each sequence")
    if any(len(infos[name].shape) != 3 for name in ("q", "k", "v")):
        _refuse(infos, "(T, H, D), (U, G, D) and (U, G, E) with q_offsets")
    if infos["k"].shape[:2] != infos["v"].shape[:2]:
        _refuse(infos, f"v with shape {(*infos['k'].shape[:2], infos['v'].shape[2])}, one value for each key")
    for name in (name for name in OFFSETS if name in infos):
        info = infos[name]
        if info.dtype not in (i32, i64):
            raise DTypeError(f"{_called(infos)}: {name} is {info.dtype}", "i32 or i64")
        if len(info.shape) != 1 or not info.shape[0]:
            _refuse(infos, f"{name} with shape (B + 1,) for B sequences")
        if info.shape != infos["q_offsets"].shape:
            _refuse(infos, f"{name} with shape {infos['q_offsets'].shape}, as q_offsets has")
    keys = infos["k"].shape[0]
    if "k_offsets" not in infos and keys != infos["q"].shape[0]:
        _refuse(infos, f"k_offsets too, for {keys} keys")


def in_pages(infos: Mapping[str, ArrayInfo]) -> dict[str, ArrayInfo]:
    """View the pages of keys and values as caches (B, G, N, D) and (B, G, N, E), whose elements are not read.

    Args:
        infos: the arrays of a call with page numbers.

    Raises:
        LaunchError: shapes do not fit, or the call has offsets or a bias.
        DTypeError: numbers that are no integers of 32 or 64 bits.
    """
    pages, (k, v) = infos[PAGES], (infos[name].shape for name in "kv")
    for other in ("q_offsets", "k_offsets", "bias"):
        if other in infos:
            raise LaunchError(f"attention: {PAGES} with {other}", f"no {other}")
    if pages.dtype not in (i32, i64):
        raise DTypeError(f"attention: {PAGES} is {pages.dtype}", "i32 or i64")
    if {len(infos["q"].shape), len(k), len(v)} != {4}:
        _refuse(infos, f"q (B, H, M, D), k (P, S, G, D) and v (P, S, G, E) with {PAGES}")
    if not k[1]:
        _refuse(infos, f"k with shape {(k[0], 1, *k[2:])}, a row in each page")
    if k[:3] != v[:3]:
        _refuse(infos, f"v with shape {(*k[:3], v[3])}, one value for each key")
    if len(pages.shape) != 2 or pages.shape[0] != infos["q"].shape[0]:
        _refuse(infos, f"{PAGES} with shape ({infos['q'].shape[0]}, T), T pages for each batch")
    made, (batches, count) = dict[str, ArrayInfo](), pages.shape
    for name in "kv":
        _, rows, heads, columns = infos[name].shape
        _, row, head, unit = infos[name].strides
        shape = (batches, heads, count * rows, columns)
        made[name] = replace(infos[name], shape=shape, strides=(0, head, row, unit))
    return made


def check_pages(infos: Mapping[str, ArrayInfo]) -> None:
    """Check the page numbers in use, if they lie in host memory.

    Raises:
        LaunchError: a page does not exist.
    """
    if PAGES not in infos or any(
        memory_of(infos[one].device) != HOST for one in (PAGES, *({LENGTHS} & infos.keys()))
    ):
        return
    pages, (most, rows) = infos[PAGES], infos["k"].shape[:2]
    found = elements(pages).view(pages.dtype.numbers)
    used = np.full(pages.shape[0], pages.shape[1])
    if LENGTHS in infos:
        used = -(-elements(infos[LENGTHS]).view(infos[LENGTHS].dtype.numbers) // rows)
    wrong = ((found < 0) | (found >= most)) & (np.arange(pages.shape[1]) < used[:, None])
    if wrong.any():
        b, t = (int(one) for one in np.argwhere(wrong)[0])
        near = min(max(int(found[b, t]), 0), max(most - 1, 0))
        raise LaunchError(f"attention: {PAGES}[{b}, {t}] is {found[b, t]}; k has {most} pages", near)


def _check_lengths(infos: Mapping[str, ArrayInfo], batches: int) -> None:
    """Check the array with the number of keys of each batch; its values only if they lie in host memory.

    Raises:
        LaunchError: the call has offsets, the shape does not fit, or a length exceeds the number of keys.
        DTypeError: lengths that are no integers of 32 or 64 bits.
    """
    info = infos[LENGTHS]
    if "q_offsets" in infos:
        raise LaunchError("attention: k_lengths with q_offsets", "k_offsets")
    if info.dtype not in (i32, i64):
        raise DTypeError(f"attention: k_lengths is {info.dtype}", "i32 or i64")
    if info.shape != (batches,):
        _refuse(infos, f"k_lengths with shape {(batches,)}, one for each batch")
    if memory_of(info.device) != HOST:
        return
    keys, found = infos["k"].shape[-2], elements(info).view(info.dtype.numbers)
    ranges = (found < 0) | (found > keys)
    if ranges.any():
        at = int(ranges.argmax())
        near = min(max(int(found[at]), 0), keys)
        raise LaunchError(f"attention: k_lengths[{at}] is {found[at]}; k has {keys} keys", near)


def are_checked(**integers: Any) -> bool:
    """Whether offsets, lengths or pages lie in host memory.  Each call checks these, so none is replayed."""
    given = ((name, one) for name, one in integers.items() if one is not None)
    return any(memory_of(describe(one, f"attention, argument {name}").device) == HOST for name, one in given)


def check_offsets(infos: Mapping[str, ArrayInfo]) -> None:
    """Check the bounds of packed sequences that lie in host memory.

    Raises:
        LaunchError: an offset is below 0, beyond the last row, or below the one before it.
    """
    for name, of in OFFSETS.items():
        if name not in infos or memory_of(infos[name].device) != HOST:
            continue
        found = elements(infos[name]).view(infos[name].dtype.numbers)
        rows = infos[of].shape[0]
        ranges = (np.maximum.accumulate(found) != found) | (found < 0) | (found > rows)
        if ranges.any():
            at = int(ranges.argmax())
            least = max(int(found[at - 1]), 0) if at else 0
            rule = f"offsets do not descend, and {of} has {rows} rows"
            text = f"{_called(infos)}: {name}[{at}] is {found[at]}; {rule}"
            raise LaunchError(text, min(max(int(found[at]), least), rows))


def check_gradients(infos: Mapping[str, ArrayInfo], results: Mapping[str, str]) -> None:
    """Check that the arrays of a backward pass fit each other.

    Args:
        infos: the arrays of the call.
        results: the name of each gradient, and that of the array whose gradient it is.

    Raises:
        LaunchError: shapes do not fit.
        DTypeError: an unsupported dtype or mixture.
    """
    op, shape = "attention_backward", result_shape(infos)
    for name in "qv":
        if infos[name].shape[-1] > MOST_OF_GRADIENTS:
            _refuse(infos, f"{name} with {MOST_OF_GRADIENTS} columns, for gradients")
    check_offsets(infos)
    if infos["dout"].shape != shape:
        _refuse(infos, f"dout with shape {shape}, as out has")
    if infos["dout"].dtype != infos["q"].dtype:
        both = f"dout is {infos['dout'].dtype} and q is {infos['q'].dtype}"
        raise DTypeError(f"{op}: {both}", "one dtype")
    for name, of in results.items():
        if name in infos and infos[name].shape != infos[of].shape:
            _refuse(infos, f"{name} with shape {infos[of].shape}, as {of} has")
    for name in ("out", *results):
        if name in infos:
            _check_dtype(infos, name)


def check_terms(infos: Mapping[str, ArrayInfo], results: Mapping[str, str], wanted: Sequence[bool]) -> None:
    """Check that a bias and sinks are given if their gradients are wanted.

    Args:
        infos: the arrays of the call.
        results: the name of each gradient of a term, and that of the term.
        wanted: whether each is returned.

    Raises:
        LaunchError: a term is not given.
    """
    for (name, of), asks in zip(results.items(), wanted, strict=True):
        if of not in infos and (asks or name in infos):
            asked = name if name in infos else f"return_{name}=True"
            raise LaunchError(
                f"attention_backward: {asked} without {of}", f"{of}=, the array that attention took"
            )


def broadcast(info: ArrayInfo, shape: tuple[int, ...]) -> ArrayInfo:
    """View an array with a shape that NumPy broadcasts it to."""
    missing = len(shape) - len(info.shape)
    extents, strides = (1,) * missing + info.shape, (0,) * missing + info.strides
    pairs = zip(extents, strides, shape, strict=True)
    return replace(
        info, shape=shape, strides=tuple(0 if one != extent else step for one, step, extent in pairs)
    )


def result_dtype(infos: Mapping[str, ArrayInfo], asked: DType | str | None) -> DType:
    """Return the dtype of the result, that of ``q`` by default.

    Args:
        infos: the arrays of the call.
        asked: the caller's ``out_dtype``.

    Raises:
        DTypeError: ``out`` and ``out_dtype`` differ, or an unsupported dtype.
    """
    written = infos["out"].dtype if "out" in infos else None
    made = agreed(None if asked is None else dtype_named(asked), written, infos["q"].dtype)
    if made not in SUPPORTED:
        what = "out_dtype" if written is None else "out"
        raise DTypeError(f"attention: {what} is {made}", ONE_OF)
    return made


def _check_dtype(infos: Mapping[str, ArrayInfo], name: str) -> None:
    """Refuse an array of another dtype than those of `SUPPORTED`."""
    if infos[name].dtype not in SUPPORTED:
        near = "0 for keys that a row sees, and -inf for others, in " if infos[name].dtype == boolean else ""
        raise DTypeError(f"{_called(infos)}: {name} is {infos[name].dtype}", near + ONE_OF)


def _refuse(infos: Mapping[str, ArrayInfo], nearest: str) -> NoReturn:
    shapes = ", ".join(f"{name} {info.shape}" for name, info in infos.items())
    raise LaunchError(f"{_called(infos)}: {shapes} do not fit", nearest)


def _called(infos: Mapping[str, ArrayInfo]) -> str:
    """The operation that takes these arrays, for messages."""
    return "attention_backward" if "dout" in infos else "attention"


def in_four(info: ArrayInfo) -> ArrayInfo:
    """Return the array with four dimensions; leading ones are added with extent 1."""
    missing = 4 - len(info.shape)
    span = abs(info.strides[0]) * info.shape[0] if missing else 0
    return replace(info, shape=(1,) * missing + info.shape, strides=(span,) * missing + info.strides)


def heads_first(info: ArrayInfo) -> ArrayInfo:
    """View an array (T, H, ...) as (H, T, ...)."""
    (t, h, *shape), (row, head, *strides) = info.shape, info.strides
    return replace(info, shape=(h, t, *shape), strides=(head, row, *strides))


class Bounds(NamedTuple):
    """A view of an array of offsets: the first rows of all sequences, or the ends of their rows.

    Args:
        of: the name of the array.
        info: the view.
        inside: offset of the view in the array, in bytes.
    """

    of: str
    info: ArrayInfo
    inside: int


def bounds_of(infos: Mapping[str, ArrayInfo]) -> dict[str, Bounds]:
    """View the offsets of packed sequences as kernels take them, in the order of their parameters."""
    made = {}
    for name in OFFSETS:
        of = name if name in infos else "q_offsets"
        info = replace(infos[of], shape=(infos[of].shape[0] - 1,))
        step = info.strides[0] * info.dtype.bytes
        made[name] = Bounds(of, info, 0)
        made[f"{name}, ends"] = Bounds(of, replace(info, pointer=info.pointer + step), step)
    return made


def stand_in(info: ArrayInfo, shape: tuple[int, ...]) -> ArrayInfo:
    """View one element of an array as an array of a shape, which a kernel takes but does not read."""
    return replace(info, shape=shape, strides=(0,) * len(shape))


def in_columns(info: ArrayInfo) -> ArrayInfo:
    """Return the array with another last dimension of extent 1."""
    return replace(info, shape=(*info.shape, 1), strides=(*info.strides, 1))


def first_column(info: ArrayInfo) -> ArrayInfo:
    """Return the first column of an array, as an array with one column."""
    return replace(info, shape=(*info.shape[:-1], 1))


def within_keys(words: AttentionWords, rows: int, keys: int) -> tuple[int | None, int | None]:
    """Return a diagonal and a window that hide the same keys; the diagonal is at most the number of keys.

    Let N be the number of keys.  With the diagonal N + t, row i sees the keys from ``i + N + t - window + 1``
    up to the last one.  With the diagonal N and the window ``window - t``, it sees the same keys.

    Args:
        words: the arguments of the call.
        rows: the number of rows.
        keys: the number of keys.
    """
    if not words.causal:
        return None, None
    diagonal = keys - rows if isinstance(words.diagonal, str) else words.diagonal
    excess = max(diagonal - keys, 0)
    if words.window is None:
        return diagonal - excess, None
    if words.window <= excess:  # no row sees a key
        return -MOST_WINDOW, 1
    return diagonal - excess, min(words.window - excess, MOST_WINDOW)


def shares_rows(seen: Mapping[str, ArrayInfo], diagonal: int | None) -> bool:
    """Whether heads that share keys can be rows of one head, so that their keys are loaded once.

    They can if each has one row.  They can, too, if they have few rows and no mask, and all rows of these
    heads are evenly spaced in memory.
    """
    arrays = [seen[name] for name in ("q", "out", "lse")]
    rows = arrays[0].shape[2]
    if rows == 1:
        return True
    even = all(one.strides[1] == rows * one.strides[2] for one in arrays)
    return diagonal is None and rows <= FEW_ROWS and even


def heads_as_rows(seen: Mapping[str, ArrayInfo], diagonal: int | None) -> dict[str, ArrayInfo]:
    """View heads that share keys as rows of one head; see `shares_rows`.

    Args:
        seen: the arrays with four dimensions.
        diagonal: the last key that the row of each head sees; later keys are cut off.  None: all keys.
    """
    made = dict(seen)
    shared = seen["k"].shape[1]
    for name in ("q", "out", "lse"):
        (b, heads, rows, columns), (step_b, step, row, unit) = seen[name].shape, seen[name].strides
        ratio = heads // shared
        shape, row = (b, shared, ratio * rows, columns), step if rows == 1 else row
        made[name] = replace(seen[name], shape=shape, strides=(step_b, step * ratio, row, unit))
    if diagonal is not None:
        for name in ("k", "v"):
            b, heads, keys, columns = seen[name].shape
            made[name] = replace(seen[name], shape=(b, heads, min(max(diagonal + 1, 0), keys), columns))
    return made
