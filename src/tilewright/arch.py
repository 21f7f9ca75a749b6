"""Architectures as data: compiler names, resources of a block, and rates.

Every number of a machine is in an `Arch`. This module has the reference and the processors; GPUs are in
`tilewright.targets.nvidia` and `tilewright.targets.amd`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace


def in_words(numbers: Sequence[int]) -> str:
    """Join numbers with commas and "or".

    Example:
        >>> in_words((4, 8, 16)), in_words((4,))
        ('4, 8 or 16', '4')
    """
    *most, last = map(str, numbers)
    return f"{', '.join(most)} or {last}" if most else last


@dataclass(frozen=True)
class Board:
    """One GPU model of an architecture.

    Args:
        name: its product name.
        multiprocessors: number of multiprocessors.
        clock_mhz: the highest clock.
        memory_gbytes_per_s: bandwidth of its memory, from the datasheet.
        l2_mbytes: megabytes of L2 cache that one multiprocessor reaches; a GPU of several dies has one L2 on
            each die.
        copied_gbytes_per_s: measured bandwidth of a copy in memory, reads plus writes; 0 if unknown.
    """

    name: str
    multiprocessors: int
    clock_mhz: int
    memory_gbytes_per_s: float
    l2_mbytes: float
    copied_gbytes_per_s: float = 0


@dataclass(frozen=True)
class Rates:
    """Peak rates of one multiprocessor per clock; a multiply-add counts as two operations.

    Args:
        tensor_flops: dense operations of the matrix units, by operand dtype or ``"tf32"``.
        fma_flops: operations of the lanes, by dtype.
        shared_bytes: bytes read from shared memory.
        boards: the known products.
        source: the source of the figures.
    """

    tensor_flops: Mapping[str, int] = field(hash=False)
    fma_flops: Mapping[str, int] = field(hash=False)
    shared_bytes: int
    boards: tuple[Board, ...]
    source: str


@dataclass(frozen=True)
class TimeConstants:
    """Times of an architecture that no data sheet gives; fitted to measured products.

    The defaults are those of Hopper, also for GPUs that were not measured.

    Args:
        launch_us: time of a kernel that does nothing.
        cluster_us: additional time of a launch in clusters.
        arrival_us: time from the request of a stage to its arrival.
        step_us: time that one group of warps needs in each K step to wait for a stage and to release it.
        copied_step_us: time of a step if the warps that multiply asynchronously also copy.
        access_clocks: clocks of one access of a warp that copies.
        outside: cost of such an access outside the array, relative to an access inside.
        store_clocks: clocks of one access of a warp that stores results.
        reading: share of the time of reads from shared memory that multiply-adds do not hide.
        cut: additional cost of a cache line of a row that does not begin at a line, relative to its bytes.
        dirty: share of the second-level cache that is written back while the first bytes come.
        ticket_us: time of one round in which the blocks that share a tile of a split K meet.
        part_bytes_per_us: rate at which a block reads the partial sums of other parts of K.
        synchronous: rate of ``mma.sync`` relative to the peak rate of the matrix units, except for f64.
        source: what the constants were fitted to; empty for a machine that was not measured.
    """

    launch_us: float = 5.05
    cluster_us: float = 0.77
    arrival_us: float = 0.7
    step_us: float = 0.12
    copied_step_us: float = 0.37
    access_clocks: float = 2.7
    outside: float = 0.63
    store_clocks: float = 24.0
    reading: float = 0.72
    cut: float = 1.45
    dirty: float = 0.61
    ticket_us: float = 0.97
    part_bytes_per_us: float = 3.4e4
    synchronous: float = 1.0
    source: str = ""


@dataclass(frozen=True)
class BulkRules:
    """Requirements of bulk tensor copies.

    Args:
        unit_bytes: addresses, strides and rows are multiples of this.
        span_bytes: bytes of a box's row in shared memory, within which the swizzle permutes units.
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
        other_lanes: other warp sizes that it supports.
        threads: most threads of one block.
        grid: most blocks along each axis, x first.
        cluster: most blocks of one cluster; 1 without clusters.
        shared_bytes: most shared memory of one block.
        registers: 32-bit registers of one multiprocessor.
        thread_registers: most registers of one thread.
        register_unit: allocation granularity of a thread's registers.
        simds: SIMD units of a multiprocessor; each executes its own warps.
        simd_warps: most resident warps of one SIMD unit.
        role_registers: fewest and most registers that a role may set.
        role_warps: warps that set their registers together.
        named_barriers: highest number of a named barrier; 0 is the block's own barrier.
        access_bytes: widest access of one thread.
        async_bytes: widths of an asynchronous copy, in bytes per thread.
        bulk: requirements of bulk copies; None without them.
        banks: banks of shared memory.
        bank_bytes: width of a bank.
        read_order: the lanes of a warp in the order in which shared memory serves loads of 16 bytes; each
            group of lanes that fills all banks is served at once.  Empty: in order of lanes.
        sector_bytes: unit of accesses to global memory.
        line_bytes: bytes of a row of banks, and of a cache line.
        vector_bytes: width of a processor's vector register.
        vector_registers: number of vector registers.
        rates: its peak rates, if known.
        times: constants of the estimate of time.
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
    times: TimeConstants = TimeConstants()

    def __repr__(self) -> str:
        return f"<{self.vendor} {self.name}>"

    def registers_of_each(self, threads: int) -> int:
        """Return the registers per thread of a block that has a multiprocessor to itself.

        The registers are divided evenly among the `SCHEDULERS`; all registers of a warp lie in one part.
        """
        warps = -(-max(threads, 1) // self.lanes)
        each = self.registers // SCHEDULERS // -(-warps // SCHEDULERS) // self.lanes
        return each // self.register_unit * self.register_unit


SCHEDULERS = 4
"""Parts of a multiprocessor that issue instructions of their own warps.

Source: NVIDIA, "CUDA C++ Programming Guide", Compute Capabilities; AMD, "CDNA3 Instruction Set Architecture",
SIMDs of a compute unit.
"""

BULK = BulkRules(unit_bytes=16, span_bytes=128, extent=256, rank=5)
"""The reference's requirements of bulk copies."""

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
"""The reference, which interprets operations: it has the features of all machines and counts their costs."""

ARCHITECTURES: dict[str, Arch] = {REFERENCE.name: REFERENCE}
"""The architectures of the reference."""


def _processor(name: str, vector_bytes: int, vector_registers: int) -> Arch:
    """Return a processor with a name as in ``-march``; one thread runs a block."""
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
