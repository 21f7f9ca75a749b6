"""The template of a device GEMM: parameters, copies of a block, and figures that follow from them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from math import lcm, prod
from typing import Any, ClassVar, TypeAlias

from tilewright.argument_checks import Count, is_sequence, is_whole
from tilewright.calls import launches
from tilewright.dtypes import DType, dtype
from tilewright.instances.words import (
    COLUMN,
    PASS_THROUGH,
    ROW,
    DimOrder,
    ElementOp,
    GemmSpecialization,
    LoopScheduler,
    MatrixLayout,
    PipelineVersion,
    VectorDim,
    padded_dims,
)
from tilewright.layout.layout import Layout


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


Products: TypeAlias = Mapping[tuple[str, str, str], tuple[tuple[int, int], ...]]
"""The extents (m, n) of instructions, by the dtypes of A, of B and of the sums."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Template(ABC):
    """``C = c_op(a_op(A) @ b_op(B))``: one tuned kernel, with the fields of all kinds of instructions.

    Subclasses add fields with other names in their templates, and describe all fields.
    """

    matrix: ClassVar[str]
    """Name of the matrix instructions: ``"wmma"`` or ``"xdl"``."""
    wave_size: ClassVar[int]
    """Threads of a wave."""
    products: ClassVar[Products]
    repeat_fields: ClassVar[tuple[str, str]]
    k1_fields: ClassVar[tuple[str, str]]

    a_dtype: DType | str
    b_dtype: DType | str
    acc_dtype: DType | str
    c_shuffle_dtype: DType | str
    c_dtype: DType | str
    block_size: Count
    m_per_block: Count
    n_per_block: Count
    k_per_block: Count
    a_block_transfer: BlockTransfer
    b_block_transfer: BlockTransfer
    c_shuffle: CShuffle
    a_layout: MatrixLayout = ROW
    b_layout: MatrixLayout = ROW
    c_layout: MatrixLayout = ROW
    a_element_op: ElementOp = PASS_THROUGH
    b_element_op: ElementOp = PASS_THROUGH
    c_element_op: ElementOp = PASS_THROUGH
    gemm_specialization: GemmSpecialization = "Default"
    num_prefetch: Count = 1
    loop_scheduler: LoopScheduler = "Default"
    pipeline_version: PipelineVersion = "v1"

    def __post_init__(self) -> None:
        plain_integers(self)
        for field in fields(self):
            if field.name.endswith("_dtype"):
                object.__setattr__(self, field.name, dtype(getattr(self, field.name)))

    def __repr__(self) -> str:
        return spelled(self)

    def __str__(self) -> str:
        return self.type_string

    @property
    def symbol(self) -> str:
        """Name of the kernel in a code object: its template, padding and numbers."""
        template, _, rest = self.type_string.partition("<")
        numbers = re.findall(r"\d+", rest.partition(">")[0])
        return "_".join((template, self.gemm_specialization, *numbers))

    @property
    @abstractmethod
    def type_string(self) -> str:
        """The text that the instance's own program prints."""

    @property
    @abstractmethod
    def instruction(self) -> tuple[int, int, int]:
        """Extents (m, n, k) of one matrix instruction."""

    @property
    def repeats(self) -> tuple[int, int]:
        """Instructions of each wave along M and N for one step along K."""
        m, n = (getattr(self, name) for name in self.repeat_fields)
        return m, n

    @property
    def k1s(self) -> tuple[int, int]:
        """Neighbours along K that stay together in shared memory, of A and of B."""
        a, b = (getattr(self, name) for name in self.k1_fields)
        return a, b

    @property
    def may_skip_lds(self) -> tuple[bool, bool]:
        """Whether A and B may go straight to registers, without shared memory."""
        return False, False

    @property
    def enable_lds(self) -> tuple[bool, bool]:
        """Whether A and B are copied to shared memory, and not directly to registers."""
        return True, True

    @property
    def dtypes(self) -> tuple[DType, DType]:
        """Element types of A and B."""
        return dtype(self.a_dtype), dtype(self.b_dtype)

    @property
    def transfers(self) -> tuple[BlockTransfer, BlockTransfer]:
        """The copies of A and of B."""
        return self.a_block_transfer, self.b_block_transfer

    @property
    def tile(self) -> tuple[int, int, int]:
        """Extents (M, N) of a block's tile, and the depth K of its steps."""
        return self.m_per_block, self.n_per_block, self.k_per_block

    @property
    def waves(self) -> tuple[int, int]:
        """Waves of a block along M and N."""
        (m, n, _), (repeat_m, repeat_n) = self.instruction, self.repeats
        return self.m_per_block // (m * repeat_m), self.n_per_block // (n * repeat_n)

    @property
    def threads(self) -> int:
        """Threads of all waves."""
        return self.waves[0] * self.waves[1] * self.wave_size

    @property
    def tiles(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """The tiles of one step, of A as (K0, M, K1) and of B as (K0, N, K1)."""
        a, b = self.k1s
        return (self.k_per_block // a, self.m_per_block, a), (self.k_per_block // b, self.n_per_block, b)

    @property
    def thread_slices(self) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """The slices of `tiles` that each thread copies."""
        a, b = (transfer.slice_of(tile) for transfer, tile in zip(self.transfers, self.tiles, strict=True))
        return a, b

    @cached_property
    def lds(self) -> tuple[Layout | None, Layout | None]:
        """Layouts of the tiles in shared memory, in elements; None for an operand that skips it.

        K1 elements are neighbours, then come the rows. With ``lds_extra`` each K0 has an extra row.
        """
        made: list[Layout | None] = []
        for enabled, tile, transfer in zip(self.enable_lds, self.tiles, self.transfers, strict=True):
            _, rows, k1 = tile
            strides = ((rows + transfer.lds_extra) * k1, k1, 1)
            made.append(Layout(tile, strides) if enabled else None)
        return made[0], made[1]

    @property
    def lds_elems(self) -> tuple[int, int]:
        """Elements of A and B in shared memory, in multiples that keep K1 elements aligned."""
        unit = lcm(*self.k1s)
        elems = []
        for enabled, (k0, rows, k1), transfer in zip(
            self.enable_lds, self.tiles, self.transfers, strict=True
        ):
            # The layout's cosize.  An illegal instance may have no K0, or more elements than a layout.
            taken = k0 * rows * k1 + (k0 - 1) * transfer.lds_extra * k1 if enabled and k0 else 0
            elems.append(-(-taken // unit) * unit)
        return elems[0], elems[1]

    @property
    def c_shuffle_tile(self) -> tuple[int, int]:
        """Rows and columns of the result that go through shared memory at once."""
        (m, n, _), (waves_m, waves_n) = self.instruction, self.waves
        shuffle = self.c_shuffle
        return shuffle.m_repeat_per_shuffle * waves_m * m, shuffle.n_repeat_per_shuffle * waves_n * n

    @property
    def lds_bytes(self) -> int:
        """Bytes of shared memory of a block: those of A and B, or of the result if they are more."""
        operands = sum(elems * kind.bytes for elems, kind in zip(self.lds_elems, self.dtypes, strict=True))
        rows, columns = self.c_shuffle_tile
        return max(rows * columns * dtype(self.c_shuffle_dtype).bytes, operands)

    @property
    def accumulators(self) -> int:
        """Sums of each thread."""
        return self.m_per_block * self.n_per_block // self.block_size

    def padded(self, m: int, n: int, k: int) -> tuple[int, int, int]:
        """Round up the extents that the specialization pads to whole tiles."""
        dims = padded_dims(self.gemm_specialization)
        made = [
            -(-extent // unit) * unit if dim in dims else extent
            for dim, extent, unit in zip("MNK", (m, n, k), self.tile, strict=True)
        ]
        return made[0], made[1], made[2]

    def contiguous(self, side: str) -> str:
        """Return the letter of M, N and K along which a matrix is contiguous."""
        layout = {"A": self.a_layout, "B": self.b_layout, "C": self.c_layout}[side]
        return {"A": "MK", "B": "KN", "C": "MN"}[side][0 if layout == COLUMN else 1]
