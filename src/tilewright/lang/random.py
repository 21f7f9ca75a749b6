"""Random numbers that are a function of a key and of a number: Philox 4x32-10, element by element."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import f32, u32, u64
from tilewright.errors import TraceError
from tilewright.lang.dataflow.tiles import Tile
from tilewright.lang.exact_functions import where
from tilewright.lang.fragments import Fragment, Number, elementwise
from tilewright.lang.source import here
from tilewright.lang.verbs import verb


@verb
def random_bits(index: Fragment | Tile, seed: Number | int, offset: Number | int = 0) -> Any:
    """32 random bits for each index, in u32: the same for the same seed, offset and index, on every target.

    They are word ``index % 4`` of Philox 4x32-10 with the key ``seed`` and the counter ``(index // 4,
    offset)``, each of 64 bits, the low half first; `testing.philox` computes them with NumPy.

    Args:
        index: of which element: integers, not negative.  Positions are i32, as is what is computed of them:
            ``positions(m).to(tw.u64)`` where there may be more than 2**31 elements.
        seed: the key; a number of the kernel in u64, or an integer.
        offset: a number that is another one at each launch, likewise.

    Raises:
        TraceError: an index that is no integer.

    Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(Y="N")
        ... def bits(Y):
        ...     tile = Y.tile((32,), (0,))
        ...     like = tw.fragment(tw.blocked((32,), (32,)), tw.u32)
        ...     tw.copy(tw.random_bits(tw.coordinates(like, 0), 7), tile)
        >>> y = np.empty(4, np.uint32)
        >>> bits(y, target="reference").target, np.array_equal(y, tw.testing.philox(np.arange(4), 7))
        ('reference', True)
    """
    _check_index(index)
    return elementwise("random_bits", index.to(u64), seed, offset).to(u32)


@verb
def dropout(
    x: Fragment | Tile,
    index: Fragment | Tile,
    threshold: Number | int,
    scale: Number | float,
    seed: Number | int,
    offset: Number | int = 0,
) -> Any:
    """``x * scale`` if `random_bits` of the index is at least a threshold, else 0.

    An element is dropped with probability ``threshold / 2**32``; with ``scale = 1 / (1 - probability)`` the
    mean stays.  Which are dropped depends on seed, offset and index alone: on no tile, block or target.

    Args:
        x: the values, of floats.
        index: of which element each is, as of `random_bits`.
        threshold: below which bits an element is dropped; an integer, or a number of the kernel in u32.
        scale: what all others are multiplied by.
        seed: as in `random_bits`.
        offset: likewise.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def halved(X):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(tw.dropout(x, tw.coordinates(x, 0), 1 << 31, 2.0, seed=7), X.tile((32,), (0,)))
        >>> x = np.ones(8, np.float32)
        >>> halved(x, target="reference").target
        'reference'
        >>> np.array_equal(x, np.where(tw.testing.philox(np.arange(8), 7) >= 1 << 31, 2, 0))
        True
    """
    if not x.dtype.is_float:
        raise TraceError(f"dropout of {x.dtype}; nearest legal choice: floats, .to(tw.{f32})", here())
    _check_index(index)
    least = threshold if isinstance(threshold, int) else threshold.to(u64)
    kept = elementwise("random_at_least", index.to(u64), seed, offset, least)
    return where(kept, x * scale, 0)


def _check_index(index: Fragment | Tile) -> None:
    if index.dtype.is_float or index.dtype.kind == "bool":
        raise TraceError(
            f"random bits of an index of {index.dtype}; nearest legal choice: .to(tw.i32)", here()
        )
