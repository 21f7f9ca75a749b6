"""Operands and scales of `scaled_mm`: dtypes, pairs of dtypes, and the shapes of scales.

A scale applies to a row of ``a`` or a column of ``b``, to a block of 128 elements along K, or to a group of
weights along K.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from tilewright import dtypes
from tilewright.arch import Arch
from tilewright.dtypes import FP8, PACKED, DType
from tilewright.errors import DTypeError, LaunchError, shown
from tilewright.layout.limits import divisor_at_most
from tilewright.ops.problem import OF_BLOCKS, MatrixBatch
from tilewright.ops.products import BLOCK
from tilewright.ops.results import MOST_IN_I32, SCALES, asked_dtype
from tilewright.ops.wanted import Wanted
from tilewright.runtime.arrays import ArrayInfo
from tilewright.schedule.panels_ring import depth_for
from tilewright.targets.atoms import WGMMA
from tilewright.targets.matrix_cores import nearest
from tilewright.targets.target import Target

WIDE = (dtypes.f32, dtypes.f16, dtypes.bf16)
NARROW = (*FP8, dtypes.i8)
OPERANDS = (*WIDE, *NARROW)
"""Dtypes of operands and of results. Scales and biases have a dtype of `WIDE`."""

ZEROS = (*WIDE, dtypes.i8, dtypes.u8)
"""Dtypes of zero points."""

GROUPED = ("scaled_mm", "rearrange_weights")
"""Operations that take scales of groups along K; these may be powers of 2, of f8e8m0."""


TINIEST, LARGEST = 2.0**-126, (2 - 2.0**-23) * 2.0**127
"""Smallest and largest positive normal number of f32."""


def number_of(op: str, name: str, given: Any) -> float | None:
    """Return a scale that is a number as a float; None for anything else.

    Args:
        op: the operation's name in messages.
        name: the argument.
        given: its value.

    Raises:
        LaunchError: an integer exceeds every float.

    Example:
        >>> import numpy as np
        >>> number_of("scaled_mm", "scale_a", np.float32(2)), number_of("scaled_mm", "zero_b", 2)
        (2.0, None)
    """
    if not name.startswith("scale_") or not isinstance(given, int | float | np.integer | np.floating):
        return None
    try:
        return float(given)
    except OverflowError:  # an integer beyond the range of floats
        text = f"{op}: {name}={shown(given)}, which is beyond the range of f64"
        raise LaunchError(text, f"{name}={LARGEST if given > 0 else -LARGEST}") from None


def multiplied_as(a: DType, b: DType, op: str = "scaled_mm") -> DType:
    """Return the dtype that two operands are multiplied in: one that holds the numbers of both.

    Args:
        a: dtype of the left operand.
        b: dtype of the right operand.
        op: the operation's name in messages.

    Raises:
        DTypeError: an unsupported dtype, or a mixture of f16, bf16 and f32.

    Example:
        >>> from tilewright.dtypes import bf16, f8e4m3, f8e5m2, i8
        >>> multiplied_as(bf16, i8), multiplied_as(f8e4m3, f8e5m2), multiplied_as(i8, i8)
        (bf16, f16, i8)
    """
    if a in PACKED:
        raise DTypeError(f"{op}: a is packed {a}, and only b may be packed", "b.T @ a.T")
    for dtype, known in ((a, OPERANDS), (b, (*OPERANDS, *PACKED))):
        if dtype not in known:
            held = "; if each byte holds two numbers, pass b=tw.packed(b, 'i4')" if dtype == dtypes.u8 else ""
            raise DTypeError(f"{op} of {dtype}; nearest: {', '.join(map(str, known))}{held}")
    if a == b:
        return a
    wide = [dtype for dtype in (a, b) if dtype in WIDE]
    if len(wide) > 1:
        raise DTypeError(f"{op} of {a} and {b}: convert one of them first")
    return wide[0] if wide else dtypes.f16


def multiplied_on(a: ArrayInfo, b: ArrayInfo, target: Target, arch: Arch) -> DType:
    """Return the dtype that two operands are multiplied in on a machine.

    It is the dtype of `multiplied_as`, with two exceptions.

    Two fp8 operands are multiplied as fp8 on GPUs that accumulate their products well.  Hopper does so for
    its own kinds, also mixed, if both operands are contiguous along K.  AMD's matrix cores do so for two of
    one kind.  Other GPUs would accumulate with 13 bits or without tensor cores: there fp8 is widened to f16,
    which is exact.

    Two i8 operands are widened to f16, and accumulated in f32, if K is so large that sums may overflow i32.

    Args:
        a: the left operand.
        b: the right operand.
        target: the target.
        arch: the architecture.
    """
    found = multiplied_as(a.dtype, b.dtype)
    if found == dtypes.i8 and a.shape[-1] > MOST_IN_I32:
        return dtypes.f16
    if not target.warps or not {a.dtype, b.dtype} <= {*FP8}:
        return found
    if a.dtype == b.dtype and nearest(a.dtype, dtypes.f32, arch.features):
        return a.dtype
    along_k = a.strides[-1] == 1 and b.strides[-2 if len(b.shape) > 1 else -1] == 1
    rows = (row for row in WGMMA if (row.a, row.b) == (a.dtype, b.dtype))
    is_there = any(row.feature in arch.features for row in rows)
    return a.dtype if along_k and is_there else dtypes.f16


def natural_dtype(multiplied: DType) -> DType:
    """Return the result's dtype for a call without ``out`` and ``out_dtype``.

    Args:
        multiplied: the dtype that operands are multiplied in.
    """
    if multiplied == dtypes.i8:
        return dtypes.f32
    return dtypes.f16 if multiplied.bits == 8 else multiplied


def scaled_dtype(kinds: Mapping[str, DType], wanted: Wanted, op: str = "scaled_mm") -> DType:
    """Return the dtype of the result, after a check of all dtypes.

    Args:
        kinds: dtypes of the arrays, by the names of the arguments.
        wanted: the other arguments of the call.
        op: the operation's name in messages.

    Raises:
        DTypeError: an argument has an unsupported dtype.
    """
    multiplied = multiplied_as(kinds["a"], kinds["b"], op)
    check_dtypes(op, kinds)
    made = asked_dtype(kinds, wanted, natural_dtype(multiplied))
    if made not in OPERANDS:
        what = "out" if "out" in kinds else "out_dtype"
        raise DTypeError(f"{op}: {what} is {made}; nearest: {', '.join(map(str, OPERANDS))}")
    return made


def check_dtypes(op: str, kinds: Mapping[str, DType]) -> None:
    """Refuse unsupported dtypes of scales, zero points and terms.

    Args:
        op: the operation's name in messages.
        kinds: dtypes of the arrays, by the names of the arguments.

    Raises:
        DTypeError: an argument has an unsupported dtype.
    """
    for name, kind in kinds.items():
        is_wide = name.startswith(("scale_", "bias"))
        legal: tuple[DType, ...] = ZEROS if name == "zero_b" else WIDE if is_wide else (kind,)
        if name in ("multiply", "residual") or (name, op) == ("c", "scaled_mm"):
            legal = OPERANDS
        legal = (*legal, dtypes.f8e8m0) if name == "scale_b" and op in GROUPED else legal
        if kind not in legal:
            raise DTypeError(f"{op}: {name} is {kind}", ", ".join(map(str, legal)))


def along_k(name: str, shape: tuple[int, ...]) -> int:
    """Return the dimension of a scale's operand that is K.

    Args:
        name: the scale.
        shape: shape of the operand.
    """
    return len(shape) - 1 if name == SCALES[0] else max(len(shape) - 2, 0)


def broadcast_scales(infos: Mapping[str, ArrayInfo]) -> dict[str, MatrixBatch]:
    """Return the extents and strides of the arrays, with scales that broadcast to the result.

    Args:
        infos: the arrays, by the names of the arguments.

    Raises:
        LaunchError: the shape of a scale does not fit its operand.
    """
    found = {name: MatrixBatch(info.shape, info.strides) for name, info in infos.items()}
    # Where K was, the result has the dimension of the other operand, unless that is a vector.
    for name, own, other in (("scale_a", "a", "b"), ("scale_b", "b", "a")):
        if name in infos:
            whole = len(infos[other].shape) > 1
            found[name] = broadcast_scale("scaled_mm", name, infos[name], infos[own].shape, whole=whole)
    return found


def broadcast_scale(
    op: str, name: str, info: ArrayInfo, operand: tuple[int, ...], *, whole: bool, blocks: bool = True
) -> MatrixBatch:
    """Return a scale that broadcasts to the result.

    Args:
        op: the operation's name in messages.
        name: the scale.
        info: its description.
        operand: shape of its operand.
        whole: whether the result has a dimension of the other operand in the place of K.
        blocks: whether the operation also takes scales of blocks; the message then lists them.

    Raises:
        LaunchError: the shape of the scale does not fit its operand.
    """
    place = along_k(name, operand)
    own = (*operand[:place], *operand[place + 1 :])
    if prod(info.shape) == 1:
        return MatrixBatch((), ())
    shape, strides = list(info.shape), list(info.strides)
    if len(shape) == len(own) + 1 and shape[place] == 1:
        del shape[place], strides[place]
    fits = len(shape) == len(own) and all(n in (1, extent) for n, extent in zip(shape, own, strict=True))
    if not fits or not own:
        each = (
            f", or one for each {'row' if name == SCALES[0] else 'column'} of {name[-1]}, of shape {own} or "
        )
        near = "a number" + (each + str((*own[:place], 1, *own[place:])) if own else "")
        near += (
            ", or one for each 128 elements along K, and optionally for each block of 128 of those"
            if own and blocks
            else ""
        )
        raise LaunchError(f"{op}: {name} has shape {info.shape}", near)
    if whole:
        shape.insert(place, 1)
        strides.insert(place, 0)
    return MatrixBatch(tuple(shape), tuple(strides))


SIXTEEN_BITS = (dtypes.f16, dtypes.bf16)
"""16-bit dtypes that operands are widened to; ``wgmma`` takes them in every memory order."""


def widens_groups(infos: Mapping[str, ArrayInfo], multiplied: DType) -> bool:
    """Whether a prepass can widen grouped weights, which must be contiguous along K.

    Args:
        infos: the arrays of a product.
        multiplied: the dtype that operands are multiplied in.
    """
    a, b = infos["a"], infos["b"]
    narrow = a.dtype == multiplied != b.dtype and multiplied in WIDE
    narrow = narrow and ("scale_b" not in infos or infos["scale_b"].dtype in WIDE)
    return narrow and b.strides[0] == 1 != b.strides[1]


WIDENED_ROWS = {True: 6144, False: 2048}
"""Fewest rows at which the prepass pays, for weights that are contiguous along K (True), and for others.

On an H200 both ways took the same time for 4096 and for 1024 rows; at 8192 and 4096 the pass gained a sixth.
"""

WIDENED_ELEMENTS = 1 << 22
"""Fewest weights for a prepass; with fewer its launch takes longer than its work."""


def pays_widened(infos: Mapping[str, ArrayInfo], multiplied: DType, features: frozenset[str]) -> bool:
    """Whether it is faster to widen operand B before the product than in the kernel of the product.

    Args:
        infos: the arrays of a product.
        multiplied: the dtype of the multiplication.
        features: features of the machine.
    """
    a, b = infos["a"], infos["b"]
    narrow = b.dtype.bits == 8 and multiplied in SIXTEEN_BITS and a.dtype == multiplied
    if "wgmma" not in features or not narrow or len(b.shape) < 2 or prod(b.shape) < WIDENED_ELEMENTS:
        return False
    return prod(a.shape[:-1]) // prod(b.shape[:-2]) >= WIDENED_ROWS[b.strides[-2] == 1]


SHORT_DEPTH, MANY_ROWS = 32, 512
"""Depth below which tiles are slow, e.g. for groups of 136 neighbours; and fewest rows for a prepass then.

On a Zen 4 1024 rows of 512 columns in groups of 2056 took 54 ms in tiles of depth 8 and 47 ms after a pass;
512 rows took 27 ms both ways.
"""

GROUPED_ROWS = 257
"""Fewest rows for a prepass of 4-bit weights in groups; up to 256 rows one kernel is used.

On an H200 a product of 128 rows with 8192 by 8192 weights took 78 us without the pass and 101 with it, one of
256 rows 148 and 110: ``prepass=True`` is the faster one from about 192 rows on.
"""


def pays_widened_groups(
    infos: Mapping[str, ArrayInfo], multiplied: DType, features: frozenset[str], target: Target
) -> bool:
    """Like `pays_widened`, for weights in groups; on a GPU, wider weights than 4 bits never pay.

    Processors decode weights while they pack panels, which took less time than a pass for any number of rows
    if tiles are deep.  Groups that only shallow tiles divide take the pass for many rows.  Groups of a few
    neighbours would be decoded one by one, and always take the pass.

    Args:
        infos: the arrays of a product.
        multiplied: the dtype of the multiplication.
        features: features of the machine.
        target: the target of the machine.
    """
    a, b = infos["a"], infos["b"]
    if not target.warps:
        groups = next((infos[name].shape[0] for name in ("scale_b", "zero_b") if name in infos), 1)
        depth = depth_for([b.shape[0] // max(groups, 1)])
        is_slow = depth < SHORT_DEPTH and (not depth or prod(a.shape[:-1]) >= MANY_ROWS)
        return target.machine_code and is_slow and widens_groups(infos, multiplied)
    if "wgmma" not in features or prod(b.shape) < WIDENED_ELEMENTS or prod(a.shape[:-1]) < GROUPED_ROWS:
        return False
    return b.dtype in PACKED and widens_groups(infos, multiplied)


def check_prepass(
    prepass: bool | None, infos: Mapping[str, ArrayInfo], multiplied: DType, *, grouped: bool, in_blocks: bool
) -> None:
    """Refuse a prepass that would widen nothing.

    Raises:
        LaunchError: operand B already has the multiplied dtype, or has scales of blocks.
    """
    if prepass and in_blocks:
        raise LaunchError(
            "prepass=True widens b before it is scaled, and the blocks of b have scales", "prepass=None"
        )
    if prepass and grouped:
        if not widens_groups(infos, multiplied):
            also = ", or b=tw.rearrange_weights(b, ...)" if infos["b"].dtype in PACKED else ""
            raise LaunchError(
                f"prepass=True widens weights with group scales to the dtype of a, {infos['a'].dtype}, and "
                "b must be contiguous along K",
                f"prepass=None{also}",
            )
        return
    narrow = infos["b"].dtype
    if prepass and not (narrow.bits == 8 and infos["a"].dtype == multiplied and narrow != multiplied):
        raise LaunchError(
            "prepass=True widens b of 8 bits to the dtype of a if they are multiplied in that dtype; b is "
            f"{narrow}, a is {infos['a'].dtype}, and they are multiplied in {multiplied}",
            "prepass=None",
        )


def shared_rows(infos: Mapping[str, ArrayInfo]) -> tuple[int, int] | None:
    """Return how many rows of ``a``, and columns of ``b``, share a block scale; None without block scales.

    Args:
        infos: the arrays, by the names of the arguments.

    Example:
        >>> import numpy as np
        >>> from tilewright.runtime.arrays import describe as info
        >>> a, b = info(np.ones((256, 512))), info(np.ones((512, 384)))
        >>> rows, blocks = info(np.ones((256, 4))), info(np.ones((4, 3)))
        >>> shared_rows({"a": a, "b": b, "scale_a": rows, "scale_b": blocks})
        (1, 128)
        >>> shared_rows({"a": a, "b": b, "scale_a": info(np.ones(256))})
    """
    found = {name: _shared(infos[name], *_operand(name, infos)) for name in SCALES if name in infos}
    if not any(found.values()):
        return None
    rows, columns = (found.get(name) or 1 for name in SCALES)
    return rows, columns


def check_scale(op: str, name: str, info: ArrayInfo, operand: tuple[int, ...]) -> None:
    """Refuse a scale that fits neither blocks, nor rows or columns, nor its whole operand.

    Args:
        op: the operation's name in messages.
        name: the scale.
        info: its description.
        operand: shape of its operand.

    Raises:
        LaunchError: the shape of the scale does not fit its operand.
    """
    if not _shared(info, operand, along_k(name, operand)):
        broadcast_scale(op, name, info, operand, whole=False)


def _operand(name: str, infos: Mapping[str, ArrayInfo]) -> tuple[tuple[int, ...], int]:
    """Return the shape of a scale's operand, and the dimension that is K."""
    shape = infos["a" if name == SCALES[0] else "b"].shape
    return shape, along_k(name, shape)


def _shared(info: ArrayInfo, shape: tuple[int, ...], place: int) -> int:
    """Return how many rows share a scale; 0 for a scale that does not apply to blocks."""
    if len(info.shape) != len(shape) or prod(info.shape) == 1:
        return 0
    blocks = -(-shape[place] // BLOCK)
    row = None if len(shape) == 1 else 2 * len(shape) - 3 - place  # a vector has no rows
    if info.shape[place] != blocks:
        return 0
    pairs = zip(info.shape, shape, strict=True)
    batches = all(n in (1, of) for dim, (n, of) in enumerate(pairs) if dim not in (place, row))
    if row is None:
        return int(batches)
    if info.shape[row] == shape[row]:
        return int(batches and blocks != 1)  # with one block along K, it is a scale of a row
    return BLOCK * (batches and info.shape[row] == -(-shape[row] // BLOCK))


def with_block_scales(infos: Mapping[str, ArrayInfo]) -> dict[str, MatrixBatch]:
    """Return the extents and strides of the arrays, with block scales expanded to their operands' shapes.

    Expanded scales have other names; see `operand_sized`.  Their strides keep batches from being merged
    with rows that have other scales.

    Args:
        infos: the arrays, by the names of the arguments; some scales apply to blocks.
    """
    found = {
        name: MatrixBatch(info.shape, info.strides) for name, info in infos.items() if name not in SCALES
    }
    for name in SCALES:
        if name not in infos:
            continue
        shape, place = _operand(name, infos)
        check_scale("scaled_mm", name, infos[name], shape)
        info = infos[name]
        if prod(info.shape) == 1:
            strides = [0] * len(shape)
        elif len(info.shape) < len(shape):  # a scale for each row
            strides = [*info.strides[:place], 0, *info.strides[place:]]
        else:
            strides = [0 if n == 1 else step for n, step in zip(info.shape, info.strides, strict=True)]
        found[operand_sized(name)] = MatrixBatch(shape, tuple(strides))
    return found


def operand_sized(name: str) -> str:
    """Return the name in a problem of a scale that is expanded to its operand's shape.

    Example:
        >>> operand_sized("scale_b")
        'b_scales'
    """
    return name[-1] + OF_BLOCKS


def as_blocks(name: str, matrices: MatrixBatch, rows: int) -> MatrixBatch:
    """Return the matrices of a block scale, with one element for each block.

    Args:
        name: the scale.
        matrices: the scale, expanded to the shape of the operand.
        rows: number of rows of the operand that share a scale.
    """
    *batch, first, second = matrices.shape
    shared = (rows, BLOCK) if name == SCALES[0] else (BLOCK, rows)
    return replace(matrices, shape=(*batch, -(-first // shared[0]), -(-second // shared[1])))


OF_GROUPS = ("scale_b", "zero_b")
"""Arrays with one number for each group and column."""


def in_groups(infos: Mapping[str, ArrayInfo], group: int | None, op: str = "scaled_mm") -> bool:
    """Whether the weights have groups along K.

    Args:
        infos: the arrays, by the names of the arguments.
        group: number of neighbours along K in a group; None without groups.
        op: the operation's name in messages.

    Raises:
        LaunchError: the groups do not divide K, or arrays do not fit them.
    """
    if group is None:
        if "zero_b" in infos:
            near = f"group={infos['b'].shape[0]}, with one row in zero_b and scale_b"
            raise LaunchError(f"{op}: zero_b needs groups along K, and group is None", near)
        if "scale_b" in infos and infos["scale_b"].dtype == dtypes.f8e8m0:
            raise LaunchError(
                f"{op}: scale_b is f8e8m0, which needs groups along K, and group is None", "group=32"
            )
        return False
    shape = infos["b"].shape
    if len(shape) != 2:
        what = f"b has shape {shape}"
        raise LaunchError(f"{op}: group={group} needs a matrix of weights, and {what}", "(K, N)")
    depth, columns = shape
    if group < 1:
        text = f"{op}: group={group}, and a group has at least 1 element along K"
        raise LaunchError(text, f"group={depth}, which makes one group, or None")
    if depth % group:
        nearest = divisor_at_most(depth, group) if depth else 1
        raise LaunchError(f"{op}: group={group} does not divide K, {depth}", f"group={nearest}")
    given = [name for name in OF_GROUPS if name in infos]
    if not given:
        text = f"{op}: group={group}, and neither scale_b nor zero_b is an array"
        raise LaunchError(text, f"scale_b of shape {(depth // group, columns)}")
    for name in given:
        if infos[name].shape != (depth // group, columns):
            raise LaunchError(
                f"{op}: {name} has shape {infos[name].shape}; for b of shape {shape} it needs one number "
                f"for each column and each group of {group} along K",
                (depth // group, columns),
            )
    return True


def as_stored(info: ArrayInfo) -> ArrayInfo:
    """Return an array of groups as the kernel reads it: f8e8m0 exponents are bytes."""
    return replace(info, dtype=dtypes.u8) if info.dtype == dtypes.f8e8m0 else info
