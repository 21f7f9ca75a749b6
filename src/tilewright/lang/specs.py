"""Array specifications: the class of arrays that one traced kernel serves."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.calls import layouts
from tilewright.dtypes import DType, dtype
from tilewright.errors import LayoutError


@layouts
@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Properties of an array that a kernel may rely on; arrays with equal properties share a kernel.

    Args:
        dtype: the element type, or its name.
        rank: the number of dimensions.
        unit_dim: the dimension whose stride is statically 1, or None.
        extent_divisors: for each dimension, a number that divides its extent.
        stride_divisors: for each dimension, a number that divides its stride, in elements; 1 for `unit_dim`.
        align: a number of bytes that divides the address of the first element.
        wide: whether the offset of an element may exceed 2**31 - 1 elements.
        signed: whether strides may be negative (a dimension in order of falling addresses).

    Example:
        >>> from tilewright.dtypes import f16
        >>> TensorSpec(f16, 2, 1, (256, 32), (16, 1), 16, False)
        f16[256i, 32i] strides [16i, 1] align 16
    """

    dtype: DType
    rank: int
    unit_dim: int | None
    extent_divisors: tuple[int, ...]
    stride_divisors: tuple[int, ...]
    align: int
    wide: bool
    signed: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", dtype(self.dtype))
        wrong = self._misfit()
        if wrong:
            raise LayoutError(f"TensorSpec({wrong}")

    def _misfit(self) -> str:
        """Return an error for the first field that contradicts the others, with the nearest legal value."""
        extents, strides, rank = self.extent_divisors, self.stride_divisors, self.rank
        for name, found in (("extent_divisors", extents), ("stride_divisors", strides)):
            if not all(divisor >= 1 for divisor in found):
                near = tuple(max(divisor, 1) for divisor in found)
                return f"{name}={found}): {name} must be positive; nearest legal choice: {name}={near}"
        if len(strides) != len(extents):
            near = (*strides[: len(extents)], *(1,) * (len(extents) - len(strides)))
            return (
                f"stride_divisors={strides}): stride_divisors must have an entry for each of the "
                f"{len(extents)} extent_divisors; nearest legal choice: stride_divisors={near}"
            )
        if rank != len(extents):
            return (
                f"rank={rank}): rank must be the number of extent_divisors; "
                f"nearest legal choice: rank={len(extents)}"
            )
        if self.unit_dim is not None and not 0 <= self.unit_dim < rank:
            return (
                f"unit_dim={self.unit_dim}): unit_dim must be one of {rank} dimensions, counted from 0, "
                "or None; nearest legal choice: unit_dim=None"
            )
        return ""

    def __repr__(self) -> str:
        extents = ", ".join(f"{divisor}i" for divisor in self.extent_divisors)
        strides = ", ".join(
            "1" if dim == self.unit_dim else f"{divisor}i" for dim, divisor in enumerate(self.stride_divisors)
        )
        more = " wide" * self.wide + " signed" * self.signed
        return f"{self.dtype}[{extents}] strides [{strides}] align {self.align}{more}"
