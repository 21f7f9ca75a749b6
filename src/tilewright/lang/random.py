"""Random numbers as a function of a key and a counter: Philox 4x32-10, element by element."""

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

    The result is word ``index % 4`` of Philox 4x32-10 with the key ``seed`` and the counter ``(index // 4,
    offset)``, each of 64 bits, the low half first.  `testing.philox` computes the same with NumPy.

    Args:
        index: the number of each element: integers, not negative.  Positions and results of arithmetic on
            them are i32; use ``positions(m).to(tw.u64)`` if there may be more than 2**31 elements.
        seed: the key; a number of the kernel in u64, or an integer.
        offset: a number that differs between launches; a number of the kernel in u64, or an integer.

    Raises:
        TraceError: the index is not an integer.

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

    An element is dropped with probability ``threshold / 2**32``.  With ``scale = 1 / (1 - probability)`` the
    mean does not change.  The choice depends only on seed, offset and index, not on tile, block or target.

    Args:
        x: the values, of a float dtype.
        index: the number of each element, as in `random_bits`.
        threshold: elements with smaller random bits are dropped; an integer, or a kernel's number in u32.
        scale: factor of all other elements.
        seed: as in `random_bits`.
        offset: as in `random_bits`.

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
