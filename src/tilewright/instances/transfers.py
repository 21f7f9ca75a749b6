"""The copies of a block: tiles of A and B to shared memory, and the result to memory."""

from __future__ import annotations

from dataclasses import dataclass, fields
from math import prod
from typing import Any

from tilewright.argument_checks import Count, is_sequence, is_whole
from tilewright.calls import launches
from tilewright.instances.words import DimOrder, VectorDim


def spelled(value: Any) -> str:
    """Return the Python expression of a value, without fields that have their defaults."""
    said = [
        f"{field.name}={getattr(value, field.name)!r}"
        for field in fields(value)
        if getattr(value, field.name) != field.default
    ]
    return f"tw.ck.{type(value).__name__}({', '.join(said)})"


def plain_integers(value: Any) -> None:
    """Convert NumPy's integers to integers, and lists to tuples, in the fields of a new frozen dataclass."""
    for field in fields(value):
        given = getattr(value, field.name)
        if is_whole(given):
            object.__setattr__(value, field.name, int(given))
        elif is_sequence(given):
            object.__setattr__(value, field.name, tuple(map(int, given)))


@launches
@dataclass(frozen=True, kw_only=True, repr=False)
class BlockTransfer:
    """The copy of a tile of A as (K0, M, K1), or of B as (K0, N, K1), with ``K = K0 * K1``.

    Each thread copies a slice of the tile, ``(K0, M, K1) / thread_cluster_lengths``. Dimension 0 is K0, 1 is
    M or N, and 2 is K1.

    Args:
        thread_cluster_lengths: threads along K0, along M or N, and along K1.
        thread_cluster_arrange_order: the order in which threads are numbered, the slowest dimension first.
        src_access_order: the order in which a thread reads its slice, the slowest dimension first.
        src_vector_dim: the dimension along which it reads vectors: 2 if K is contiguous, else 1.
        src_scalar_per_vector: elements that it reads at once.
        dst_scalar_per_vector_k1: elements that it writes to shared memory at once, along K1.
        lds_extra: whether each K0 of the tile in shared memory has an extra row of K1 elements, so that
            neighbouring K0 lie in different banks.

    Raises:
        LaunchError: a length is no positive integer, or an order is not legal.

    Example:
        >>> import tilewright as tw
        >>> transfer = tw.ck.BlockTransfer(
        ...     thread_cluster_lengths=(4, 64, 1), thread_cluster_arrange_order=(1, 0, 2),
        ...     src_access_order=(1, 0, 2), src_vector_dim=2, src_scalar_per_vector=8,
        ...     dst_scalar_per_vector_k1=8, lds_extra=True,
        ... )
        >>> transfer.threads, transfer.slice_of((8, 128, 8))
        (256, (2, 2, 8))
    """

    thread_cluster_lengths: tuple[Count, Count, Count]
    thread_cluster_arrange_order: DimOrder
    src_access_order: DimOrder
    src_vector_dim: VectorDim
    src_scalar_per_vector: Count
    dst_scalar_per_vector_k1: Count
    lds_extra: bool = False

    def __post_init__(self) -> None:
        plain_integers(self)

    def __repr__(self) -> str:
        return spelled(self)

    @property
    def threads(self) -> int:
        """Number of threads that copy."""
        return prod(self.thread_cluster_lengths)

    def slice_of(self, tile: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the slice of a tile (K0, M or N, K1) that each thread copies, rounded up."""
        k0, rows, k1 = (
            -(-extent // count) for extent, count in zip(tile, self.thread_cluster_lengths, strict=True)
        )
        return k0, rows, k1


@launches
@dataclass(frozen=True, kw_only=True, repr=False)
class CShuffle:
    """The store of a block's result: some repeats at a time, through shared memory, in wide vectors.

    Args:
        m_repeat_per_shuffle: repeats along M of each wave that go through shared memory at once.
        n_repeat_per_shuffle: repeats along N.
        cluster_lengths: threads along (M blocks, M in the block, N blocks, N in the block).
        scalar_per_vector: elements along N that a thread stores at once.

    Raises:
        LaunchError: a field is no positive integer.

    Example:
        >>> import tilewright as tw
        >>> shuffle = tw.ck.CShuffle(
        ...     m_repeat_per_shuffle=1, n_repeat_per_shuffle=1, cluster_lengths=(1, 32, 1, 8),
        ...     scalar_per_vector=8,
        ... )
        >>> shuffle.threads
        256
    """

    m_repeat_per_shuffle: Count
    n_repeat_per_shuffle: Count
    cluster_lengths: tuple[Count, Count, Count, Count]
    scalar_per_vector: Count

    def __post_init__(self) -> None:
        plain_integers(self)

    def __repr__(self) -> str:
        return spelled(self)

    @property
    def threads(self) -> int:
        """Number of threads that store."""
        return prod(self.cluster_lengths)
