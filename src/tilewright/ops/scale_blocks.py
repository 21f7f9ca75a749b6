"""Scales of blocks of 128 places along K: which scales of `scaled_mm` are such, and what they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tilewright.ops.problem import OF_BLOCKS, Matrices
from tilewright.ops.products import BLOCK
from tilewright.ops.scales import SCALES, along_k, broadcast_scale
from tilewright.runtime.arrays import ArrayInfo


def shared_rows(infos: Mapping[str, ArrayInfo]) -> tuple[int, int] | None:
    """How many rows of ``a``, and columns of ``b``, have a scale of blocks in common; None without blocks.

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
    """Refuse a scale that belongs neither to blocks, nor to rows or columns, nor to all of its operand.

    Args:
        op: what messages call the operation.
        name: of the scale.
        info: what it is.
        operand: the shape of what it scales.

    Raises:
        LaunchError: its shape does not say what it scales.
    """
    if not _shared(info, operand, along_k(name, operand)):
        broadcast_scale(op, name, info, operand, whole=False)


def _operand(name: str, infos: Mapping[str, ArrayInfo]) -> tuple[tuple[int, ...], int]:
    """The shape of what a scale belongs to, and which of its dimensions is K."""
    shape = infos["a" if name == SCALES[0] else "b"].shape
    return shape, along_k(name, shape)


def _shared(info: ArrayInfo, shape: tuple[int, ...], place: int) -> int:
    """How many rows have a scale in common; 0 of what is no scale of blocks."""
    if len(info.shape) != len(shape) or prod(info.shape) == 1:
        return 0
    blocks, row = -(-shape[place] // BLOCK), _row_of(shape, place)
    if info.shape[place] != blocks:
        return 0
    pairs = zip(info.shape, shape, strict=True)
    batches = all(n in (1, of) for dim, (n, of) in enumerate(pairs) if dim not in (place, row))
    if row is None:
        return int(batches)
    if info.shape[row] == shape[row]:
        return int(batches and blocks != 1)  # else it is a scale for each row, of all of K
    return BLOCK * (batches and info.shape[row] == -(-shape[row] // BLOCK))


def _row_of(shape: tuple[int, ...], place: int) -> int | None:
    """The dimension of an operand that is its rows, or columns; None of a vector."""
    return None if len(shape) == 1 else 2 * len(shape) - 3 - place


def beside_operands(infos: Mapping[str, ArrayInfo]) -> dict[str, ArrayInfo]:
    """The arrays, with the scales as arrays that are as large as their operands, by names of their own.

    Where a scale has an element for several rows, or all of them, its strides say so of the operand as well:
    batches join the rows where they are the rows' own.

    Args:
        infos: the arrays, by the names of the arguments; some scales are those of blocks.
    """
    found = {name: info for name, info in infos.items() if name not in SCALES}
    for name in SCALES:
        if name not in infos:
            continue
        shape, place = _operand(name, infos)
        check_scale("scaled_mm", name, infos[name], shape)
        info = infos[name]
        if prod(info.shape) == 1:
            strides = [0] * len(shape)
        elif len(info.shape) < len(shape):  # one for each row
            strides = [*info.strides[:place], 0, *info.strides[place:]]
        else:
            strides = [0 if n == 1 else step for n, step in zip(info.shape, info.strides, strict=True)]
        found[operand_sized(name)] = replace(info, shape=shape, strides=tuple(strides))
    return found


def operand_sized(name: str) -> str:
    """What a scale is called in a problem, where it is as large as its operand.

    Example:
        >>> operand_sized("scale_b")
        'b_scales'
    """
    return name[-1] + OF_BLOCKS


def as_blocks(name: str, matrices: Matrices, rows: int) -> Matrices:
    """The scales of a problem, one for each block.

    Args:
        name: of the scale.
        matrices: as large as the operand.
        rows: of the operand, which have a scale in common.
    """
    *batch, first, second = matrices.shape
    shared = (rows, BLOCK) if name == SCALES[0] else (BLOCK, rows)
    return replace(matrices, shape=(*batch, -(-first // shared[0]), -(-second // shared[1])))
