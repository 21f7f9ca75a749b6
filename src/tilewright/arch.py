"""Architectures as data: compiler names, resources of a block, and rates.

Every number of a machine is in one of these records.  Here are the kind of record, the
machine that the reference is, and processors.  GPUs are in `tilewright.targets.nvidia` and
`tilewright.targets.amd`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


def in_words(numbers: Sequence[int]) -> str:
    """Numbers to choose from.

    Example:
        >>> in_words((4, 8, 16)), in_words((4,))
        ('4, 8 or 16', '4')
    """
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


@dataclass(frozen=True)
class Board:
    """One product that has an architecture's multiprocessors.

    Args:
        name: its product name.
        multiprocessors: number of multiprocessors.
        clock_mhz: the highest clock.
        memory_gbytes_per_s: bandwidth of its memory by datasheet.
        l2_mbytes: megabytes of the second-level cache that a multiprocessor reaches; products of several
            dies have one on each.
        copied_gbytes_per_s: what a copy from memory to memory was measured to reach, read and written; 0 if
            nobody measured it.
        memory_side_mbytes: megabytes of a cache between that one and memory, which AMD calls Infinity Cache;
            0 if there is none.
    """

    name: str
    multiprocessors: int
    clock_mhz: int
    memory_gbytes_per_s: float
    l2_mbytes: float
    copied_gbytes_per_s: float = 0
    memory_side_mbytes: float = 0


@dataclass(frozen=True)
class Rates:
    """Peak rates of one multiprocessor per clock; a multiply-add counts as two operations.

    Args:
        tensor_flops: operations of the matrix units, dense, by the dtype of the operands or ``"tf32"``.
        fma_flops: operations of the lanes, by dtype.
        shared_bytes: bytes that are read from shared memory.
        boards: the known products.
        source: the source of the figures.
    """

    tensor_flops: Mapping[str, int] = field(hash=False)
    fma_flops: Mapping[str, int] = field(hash=False)
    shared_bytes: int
    boards: tuple[Board, ...]
    source: str


@dataclass(frozen=True)
class BulkRules:
    """Requirements of bulk copies on boxes.

    Args:
        unit_bytes: addresses, strides and rows are multiples of this.
        span_bytes: rows of a box in shared memory, whose units are exchanged.
        extent: longest side of a box.
        rank: most dimensions of a tensor.
    """

    unit_bytes: int
    span_bytes: int
    extent: int
    rank: int


@dataclass(frozen=True, kw_only=True)
class Arch:
    """One kind of machine.  A field is 0 or empty if the machine lacks the feature, or if it does not matter.

    Args:
        name: its name for the compiler.
        vendor: its vendor, in lower case.
        features: capabilities by name: instruction sets (``"sm_89"``: all instructions of that compute
            capability), instructions (``"wgmma"``), and abilities (``"cp_async"``, ``"cluster"``).
        lanes: threads of a warp, unless a kernel asks for others.
        other_lanes: further warp sizes that it executes.
        threads: most threads of one block.
        grid: most blocks along each axis, x first.
        cluster: most blocks of one cluster; 1 without clusters.
        shared_bytes: most shared memory of one block.
        registers: 32-bit registers of one multiprocessor.
        thread_registers: most registers of one thread.
        register_unit: registers are given to threads in multiples of this.
        simds: parts of a multiprocessor; each executes its own warps.
        simd_warps: most warps that one of them executes in turns.
        vector_clocks: clocks of a SIMD for one vector instruction of a warp.
        role_registers: fewest and most that a role may set.
        role_warps: warps that set them together.
        named_barriers: highest number of a barrier of some of a block's threads; 0 is the block's own.
        access_bytes: widest access of one thread.
        async_bytes: widths of a copy that goes on in the background, in bytes per thread.
        bulk: requirements of bulk copies; None if it has none.
        banks: banks of shared memory.
        bank_bytes: width of a bank.
        read_order: the lanes of a warp in the order in which shared memory serves loads of 16 bytes, as many
            at once as fill all banks; empty: neighbours.
        sector_bytes: unit of accesses to global memory.
        line_bytes: bytes of a row of banks, and of a cache line.
        vector_bytes: width of a vector register of a processor that computes in those.
        vector_registers: number of vector registers.
        rates: its peak rates, if known.
    """

    name: str
    vendor: str
    lanes: int
    other_lanes: tuple[int, ...] = ()
    features: frozenset[str] = frozenset()
    threads: int = 0
    grid: tuple[int, ...] = ()
    cluster: int = 1
    shared_bytes: int = 0
    registers: int = 0
    thread_registers: int = 0
    register_unit: int = 1
    simds: int = 0
    simd_warps: int = 0
    vector_clocks: int = 1
    role_registers: tuple[int, int] = (0, 0)
    role_warps: int = 1
    named_barriers: int = 0
    access_bytes: int = 16
    async_bytes: tuple[int, ...] = ()
    bulk: BulkRules | None = None
    banks: int = 0
    bank_bytes: int = 0
    read_order: tuple[int, ...] = ()
    sector_bytes: int = 0
    line_bytes: int = 0
    vector_bytes: int = 0
    vector_registers: int = 0
    rates: Rates | None = None

    def __repr__(self) -> str:
        return f"<{self.vendor} {self.name}>"

    def registers_of_each(self, threads: int) -> int:
        """Return the registers per thread of a block that has a multiprocessor to itself."""
        return self.registers // max(threads, 1) // self.register_unit * self.register_unit


BULK = BulkRules(unit_bytes=16, span_bytes=128, extent=256, rank=5)
"""Boxes as the reference copies them."""

REFERENCE = Arch(
    name="numpy",
    vendor="any",
    lanes=32,
    other_lanes=(1, 2, 4, 8, 16, 64, 128),
    named_barriers=15,
    role_registers=(24, 240),
    role_warps=4,
    register_unit=8,
    async_bytes=(4, 8, 16),
    bulk=BULK,
    banks=32,
    bank_bytes=4,
    sector_bytes=32,
    line_bytes=128,
)
"""The machine that executes the operations themselves: it has and counts what others do."""

ARCHITECTURES: dict[str, Arch] = {REFERENCE.name: REFERENCE}
"""The architectures of the reference: there is one."""


def _processor(name: str, vector_bytes: int, vector_registers: int) -> Arch:
    """Return a processor, named as in ``-march`` if possible; one of its threads runs a block."""
    return replace(REFERENCE, name=name, vector_bytes=vector_bytes, vector_registers=vector_registers)


PROCESSORS: dict[str, Arch] = {
    arch.name: arch
    for arch in (
        _processor("x86-64-v4", 64, 32),
        _processor("x86-64-v3", 32, 16),
        _processor("x86-64", 16, 16),
        _processor("aarch64", 16, 32),
        _processor("generic", 16, 16),
    )
}
"""The architectures of processors by their names."""
