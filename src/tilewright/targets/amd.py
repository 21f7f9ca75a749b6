"""AMD's architectures, as data, and the occupancy of their SIMDs.

``registers`` counts the 32-bit vector registers of a compute unit, ``thread_registers`` those of one lane.
On CDNA half of the registers of a lane are accumulation registers.

Source: the ISA documents of CDNA 2, CDNA 3, CDNA 4, RDNA 3, RDNA 3.5 and RDNA 4; their white papers and
product pages for the rates.  LLVM, "User Guide for AMDGPU Backend", "Processors".
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.arch import Arch, Board, Rates

_GRID = (2**31 - 1, 65535, 65535)

_READ_ORDER = tuple(
    first + lane
    for first in (0, 32)
    for start in (0, 20, 4, 16, 8, 28, 12, 24)
    for lane in range(start, start + 4)
)
"""Lanes 0 to 3 with 20 to 23, 4 to 7 with 16 to 19, and so on: the groups of eight for ``ds_read_b128``.

Source: AMD, "Avoiding LDS bank conflicts on AMD GPUs using CK-Tile framework", ROCm blogs.
"""

GFX90A = Arch(
    name="gfx90a",
    vendor="amd",
    features=frozenset({"gfx9", "gfx90a", "mfma"}),
    lanes=64,
    threads=1024,
    grid=_GRID,
    shared_bytes=65536,
    registers=131072,
    thread_registers=512,
    register_unit=8,
    simds=4,
    simd_warps=8,
    async_bytes=(4,),
    banks=32,
    bank_bytes=4,
    read_order=_READ_ORDER,
    sector_bytes=64,
    line_bytes=128,
    rates=Rates(
        {"f16": 1024, "bf16": 1024, "i8": 1024, "f32": 256, "f64": 256},
        {"f32": 256, "f64": 128},
        128,
        (Board("Instinct MI250X, one of its two dies", 110, 1700, 1638, 8),),
        "CDNA 2 white paper",
    ),
)
GFX942 = replace(
    GFX90A,
    name="gfx942",
    features=frozenset({"gfx9", "gfx940", "gfx942", "mfma"}),
    rates=Rates(
        {
            "f16": 2048,
            "bf16": 2048,
            "i8": 4096,
            "f32": 256,
            "f64": 256,
            "f8e4m3fnuz": 4096,
            "f8e5m2fnuz": 4096,
        },
        {"f32": 256, "f64": 128},
        128,
        (Board("Instinct MI300X", 304, 2100, 5300, 4),),
        "CDNA 3 white paper",
    ),
)
GFX950 = replace(
    GFX942,
    name="gfx950",
    features=frozenset({"gfx9", "gfx940", "gfx950", "mfma"}),
    shared_bytes=163840,
    async_bytes=(4, 16),
    banks=64,
    read_order=(),  # the groups of sixteen that serve its 64 banks are not published
    line_bytes=256,
    rates=Rates(
        {"f16": 4096, "bf16": 4096, "i8": 8192, "f8e4m3": 8192, "f8e5m2": 8192, "f32": 256, "f64": 128},
        {"f32": 256, "f64": 128},
        256,
        (Board("Instinct MI355X", 256, 2400, 8000, 4),),
        "CDNA 4 white paper",
    ),
)
GFX1100 = Arch(
    name="gfx1100",
    vendor="amd",
    features=frozenset({"gfx11", "wmma"}),
    lanes=32,
    threads=1024,
    grid=_GRID,
    shared_bytes=65536,
    registers=98304,
    thread_registers=256,
    register_unit=24,
    simds=2,
    simd_warps=16,
    banks=32,
    bank_bytes=4,
    sector_bytes=64,
    line_bytes=128,
    rates=Rates(
        {"f16": 512, "bf16": 512, "i8": 512},
        {"f32": 256},
        128,
        (Board("Radeon RX 7900 XTX", 96, 2500, 960, 6),),
        "RDNA 3 white paper",
    ),
)


def _rdna3(name: str, board: Board, source: str, *, few_registers: bool = False) -> Arch:
    """Return another architecture with the instructions of gfx11.

    Args:
        name: the name of the architecture.
        board: a product.
        source: the source of the product's figures.
        few_registers: whether a SIMD has 1024 vector registers of 32 lanes, not 1536.
    """
    rates = replace(GFX1100.rates or Rates({}, {}, 0, (), ""), boards=(board,), source=source)
    made = replace(GFX1100, name=name, rates=rates)
    return replace(made, registers=65536, register_unit=16) if few_registers else made


GFX1101 = _rdna3(
    "gfx1101",
    Board("Radeon RX 7800 XT", 60, 2430, 624, 4),
    "Radeon RX 7800 XT product page; RDNA 3 white paper",
)
GFX1102 = _rdna3(
    "gfx1102",
    Board("Radeon RX 7600", 32, 2655, 288, 2),
    "Radeon RX 7600 product page; RDNA 3 white paper",
    few_registers=True,
)
GFX1103 = _rdna3(
    "gfx1103",
    Board("Radeon 780M", 12, 2700, 120, 2),
    "AMD Ryzen 7 7840U product page; RDNA 3 white paper",
    few_registers=True,
)
GFX1150 = _rdna3(
    "gfx1150",
    Board("Radeon 890M", 16, 2900, 128, 2),
    "AMD Ryzen AI 9 HX 370 product page; RDNA 3 white paper",
    few_registers=True,
)
GFX1151 = _rdna3(
    "gfx1151",
    Board("Radeon 8060S", 40, 2900, 256, 2),
    "AMD Ryzen AI Max+ 395 product page; RDNA 3 white paper",
)
GFX1152 = _rdna3(
    "gfx1152",
    Board("Radeon 860M", 8, 3000, 128, 1),
    "AMD Ryzen AI 7 350 product page; RDNA 3 white paper",
    few_registers=True,
)
GFX1201 = replace(
    GFX1100,
    name="gfx1201",
    features=frozenset({"gfx12", "wmma"}),
    rates=Rates(
        {"f16": 1024, "bf16": 1024, "i8": 2048, "f8e4m3": 2048, "f8e5m2": 2048},
        {"f32": 256},
        128,
        (Board("Radeon RX 9070 XT", 64, 2970, 640, 8),),
        "RDNA 4 architecture overview",
    ),
)
GFX1200 = replace(
    GFX1201,
    name="gfx1200",
    rates=replace(
        GFX1201.rates or Rates({}, {}, 0, (), ""),
        boards=(Board("Radeon RX 9060 XT", 32, 3130, 320, 4),),
        source="Radeon RX 9060 XT product page; RDNA 4 architecture overview",
    ),
)

_CDNA, _RDNA4 = (GFX90A, GFX942, GFX950), (GFX1200, GFX1201)
_RDNA3 = (GFX1100, GFX1101, GFX1102, GFX1103, GFX1150, GFX1151, GFX1152)

ARCHITECTURES: dict[str, Arch] = {arch.name: arch for arch in (*_CDNA, *_RDNA3, *_RDNA4)}
"""Every architecture by name."""


# ---------------------------------------------------------------- occupancy


def warps_per_simd(arch: Arch, registers: int, shared_bytes: int, threads: int) -> int:
    """Return the occupancy in warps per SIMD, as the compiler counts it.

    Shared memory is allocated per block.  Registers are counted per warp, although a block starts only when
    all of its warps have registers.

    Args:
        arch: the architecture.
        registers: registers of a thread.
        shared_bytes: bytes of shared memory of a block.
        threads: threads of a block.

    Example:
        >>> from tilewright.targets.amd import GFX942, GFX1151
        >>> warps_per_simd(GFX942, 120, 20480, 256), warps_per_simd(GFX1151, 139, 20480, 256)
        (3, 10)
    """
    return min(limits(arch, registers, shared_bytes, threads).values())


def limits(arch: Arch, registers: int, shared_bytes: int, threads: int) -> dict[str, int]:
    """Return the warps per SIMD that each resource allows, by its name.

    Args:
        arch: the architecture.
        registers: registers of a thread.
        shared_bytes: bytes of shared memory of a block.
        threads: threads of a block.

    Example:
        >>> from tilewright.targets.amd import GFX942
        >>> limits(GFX942, 120, 20480, 256)
        {'warps': 8, 'registers': 4, 'shared_bytes': 3}
    """
    unit, warps = arch.register_unit, -(-threads // arch.lanes)
    taken = max(-(-registers // unit) * unit, unit)
    of_simd = arch.registers // arch.lanes // arch.simds
    blocks = arch.shared_bytes // shared_bytes if shared_bytes else 0
    return {
        "warps": arch.simd_warps,
        "registers": of_simd // taken,
        "shared_bytes": max(blocks * warps // arch.simds, 1) if shared_bytes else arch.simd_warps,
    }
