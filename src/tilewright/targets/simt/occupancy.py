"""How many warps of a kernel a SIMD executes in turns, and what limits them."""

from __future__ import annotations

from tilewright.arch import Arch


def warps_per_simd(arch: Arch, registers: int, shared_bytes: int, threads: int) -> int:
    """Warps that a SIMD executes in turns, as the compiler counts them: so many as have registers there.

    Of shared memory whole blocks have some, or none; registers are counted warp by warp, though a block
    begins only where all of its warps have theirs.

    Args:
        arch: the architecture.
        registers: of a thread.
        shared_bytes: of a block.
        threads: of a block.

    Example:
        >>> from tilewright.targets.amd import GFX942, GFX1151
        >>> warps_per_simd(GFX942, 120, 20480, 256), warps_per_simd(GFX1151, 139, 20480, 256)
        (3, 10)
    """
    return min(limits(arch, registers, shared_bytes, threads).values())


def limits(arch: Arch, registers: int, shared_bytes: int, threads: int) -> dict[str, int]:
    """Warps per SIMD that each resource leaves room for, by its name.

    Args:
        arch: the architecture.
        registers: of a thread.
        shared_bytes: of a block.
        threads: of a block.

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
