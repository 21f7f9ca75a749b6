"""`rearrange_weights`: transpose 4-bit weights once, so that kernels for few rows load neighbours along K."""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from tilewright import dtypes
from tilewright.calls import launches
from tilewright.dtypes import PACKED, DType
from tilewright.errors import DTypeError, LaunchError
from tilewright.lang import operations as tw
from tilewright.lang.launch import block_index
from tilewright.lang.operations import copy
from tilewright.lang.scalars import ceil_div
from tilewright.ops.replay import CONTAINERS, Container
from tilewright.ops.scales import check_dtypes, check_scale, in_groups, number_of
from tilewright.runtime.arrays import describe, fresh
from tilewright.runtime.kernel import kernel
from tilewright.runtime.packed_arrays import Packed, packed

SIDE, THREADS = 64, 128
"""Rows and columns of a tile that a block rearranges, and its threads."""


@launches
@dataclass(frozen=True, eq=False)
class RearrangedWeights:
    """4-bit weights, contiguous along K, with their scales and zero points; made by `rearrange_weights`.

    Weights that were already contiguous along K are not copied.

    Args:
        b: `packed` numbers of 4 bits (K, N), contiguous along K.
        scale_b: scales, one for each group and column, or None.
        zero_b: zero points, one for each group and column, or None.
        group: neighbours along K that share a scale; None: there are no groups.
    """

    b: Packed
    scale_b: Any = None
    zero_b: Any = None
    group: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents (K, N).

        Example:
            >>> import tilewright as tw
            >>> tw.rearrange_weights(tw.packed(tw.pack([[1, 2]] * 6, tw.i4), tw.i4), target="reference").shape
            (6, 2)
        """
        return describe(self.b).shape

    def __repr__(self) -> str:
        k, n = self.shape
        groups = "" if self.group is None else f", groups of {self.group}"
        zeros = "" if self.zero_b is None else " with zero points"
        return f"<{self.b.dtype} weights {k} x {n}{groups}{zeros}>"


_FIELDS = ("b", "scale_b", "zero_b", "group")
CONTAINERS[RearrangedWeights] = Container(attrgetter(*_FIELDS), _FIELDS)


@launches
def rearrange_weights(
    b: Any,
    scale_b: Any = None,
    zero_b: Any = None,
    *,
    group: int | None = None,
    target: str | None = None,
    stream: Any = None,
) -> RearrangedWeights:
    """Rearrange 4-bit weights once for `scaled_mm`, so that neighbours along K share bytes.

    A thread multiplies several neighbours along K, and loads them at once if they are neighbours in memory.
    If neighbours along N share bytes, every product loads the weights one by one.  This call transposes them
    once with one kernel.  Weights that are already contiguous along K are not copied.  The product is the
    same, but its terms may be added in another order.

    Args:
        b: `packed` numbers of i4, u4 or f4e2m1, (K, N), contiguous along either; K is even.
        scale_b: as `scaled_mm` takes it.
        zero_b: as `scaled_mm` takes it.
        group: as `scaled_mm` takes it.
        target: ``"cpu"``, ``"cuda"`` or ``"reference"``; default: where the arrays lie.
        stream: the CUDA stream; default: the framework's current stream.

    Returns:
        The weights with their scales, which `scaled_mm` takes as ``b``.

    Raises:
        LaunchError: the scales do not fit, or K is odd.
        DTypeError: the array is not packed, or `scaled_mm` does not take the scales or zero points.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> along_n = tw.packed(tw.pack([[1, -8], [2, 7], [3, 0], [4, 5]], tw.i4), tw.i4)
        >>> scales = np.float16([[1, 1], [0.5, 2]])
        >>> weights = tw.rearrange_weights(along_n, scales, group=2, target="reference")
        >>> weights
        <i4 weights 4 x 2, groups of 2>
        >>> tw.scaled_mm(np.ones((1, 4), np.float16), weights, target="reference")
        array([[6.5, 9. ]], dtype=float16)
    """
    info = describe(b, "rearrange_weights, argument b")
    if info.dtype not in PACKED:
        raise DTypeError(
            f"rearrange_weights: b is {info.dtype}, and only 4-bit weights can be rearranged",
            f"b=tw.packed(bytes, 'i4'), or call {'scaled_mm' if info.dtype.bits == 8 else 'matmul'} with b "
            "itself",
        )
    infos = {"b": info}
    for name, array in (("scale_b", scale_b), ("zero_b", zero_b)):
        if array is not None and number_of("rearrange_weights", name, array) is None:
            infos[name] = describe(array, f"rearrange_weights, argument {name}")
    check_dtypes("rearrange_weights", {name: one.dtype for name, one in infos.items()})
    grouped = in_groups(infos, group, "rearrange_weights")
    if len(info.shape) != 2:
        raise LaunchError(f"rearrange_weights: b has shape {info.shape}", "(K, N)")
    if "scale_b" in infos and not grouped:
        check_scale("rearrange_weights", "scale_b", infos["scale_b"], info.shape)
    depth, columns = info.shape
    if info.strides[0] == 1 or depth <= info.dtype.per_byte or 0 in info.shape:
        return RearrangedWeights(b, scale_b, zero_b, group)
    if depth % info.dtype.per_byte:
        near = (
            f"a multiple of {info.dtype.per_byte}, because {info.dtype.per_byte} weights along K share a byte"
        )
        raise LaunchError(f"rearrange_weights: K is {depth}", near)
    made = fresh(b.array, (columns, depth // info.dtype.per_byte), dtypes.u8).make()
    along_k = packed(made.T, info.dtype)
    wide = dtypes.f16 if info.dtype.is_float else dtypes.i8
    turn_weights.bind(wide=wide)(b, along_k, target=target, stream=stream)
    return RearrangedWeights(along_k, scale_b, zero_b, group)


@kernel(W="K N", V="K N")
def turn_weights(W: Any, V: Any, *, wide: DType) -> None:
    """``V[k, n] = W[k, n]`` for W contiguous along N and V along K, through shared memory of a wide dtype."""
    k, n = block_index((ceil_div(W.shape[0], SIDE), ceil_div(W.shape[1], SIDE)))
    held = tw.shared((SIDE, SIDE), wide)
    copy(W.tile((SIDE, SIDE), (k, n)), held, threads=THREADS)
    tw.barrier()
    copy(held, V.tile((SIDE, SIDE), (k, n)), threads=THREADS)
