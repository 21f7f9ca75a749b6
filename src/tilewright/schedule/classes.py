"""Classes of arrays that an expanded kernel tells apart: as few as bring speed."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from tilewright.arch import Arch
from tilewright.lang.specs import TensorSpec

WIDTHS = (16, 4)
"""Widths of access in bytes that are told apart; what is narrower is moved element by element."""


@lru_cache(maxsize=1024)
def coarse(spec: TensorSpec, arch: Arch) -> TensorSpec:
    """The class with what no access makes use of left out.

    Of a stride, the start, and the extent of the dimension that is contiguous it counts whether accesses of
    16 or of 4 bytes divide them; where a thread has vectors of its own, whose accesses may begin anywhere,
    nothing of them counts.  Packed elements share bytes in any case.

    Example:
        >>> from tilewright.arch import REFERENCE
        >>> from tilewright.dtypes import f16
        >>> from tilewright.targets.target import CPU
        >>> spec = TensorSpec(f16, 2, 1, (256, 34), (24, 1), 16, False)
        >>> coarse(spec, REFERENCE)
        f16[1i, 2i] strides [8i, 1] align 16
        >>> coarse(spec, CPU.architecture("x86-64-v3"))
        f16[1i, 1i] strides [1i, 1] align 2
    """
    size, together = spec.dtype.bytes, spec.dtype.per_byte
    widths = () if arch.vector_registers else WIDTHS

    def width(count: int) -> int:
        counts = (w // size * together for w in widths if w >= size)
        return max((one for one in counts if count % one == 0), default=together)

    return replace(
        spec,
        extent_divisors=tuple(
            width(divisor) if dim == spec.unit_dim else 1 for dim, divisor in enumerate(spec.extent_divisors)
        ),
        stride_divisors=tuple(
            1 if dim == spec.unit_dim else width(divisor) for dim, divisor in enumerate(spec.stride_divisors)
        ),
        align=max((w for w in widths if spec.align % w == 0), default=min(spec.align, size)),
    )
