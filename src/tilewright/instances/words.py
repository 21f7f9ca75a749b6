"""The words that fields of an instance are given in, and what of them is legal."""

from __future__ import annotations

from typing import Any, TypeAlias

from tilewright.kinds import is_sequence, is_whole, legal, one_of

ROW, COLUMN = "row", "column"
LAYOUTS = (ROW, COLUMN)
"""How a matrix lies in memory: its rows are contiguous, or its columns."""

GEMM_SPECIALIZATIONS = (
    *("Default", "MPadding", "NPadding", "KPadding"),
    *("MNPadding", "MKPadding", "NKPadding", "MNKPadding"),
)
"""Which extents of the problem are padded to multiples of the block's tile."""

LOOP_SCHEDULERS = ("Default", "Interwave")
PIPELINE_VERSIONS = ("v1", "v2")

PASS_THROUGH = "PassThrough"
"""The element operation that changes nothing."""


def _is_order(value: Any) -> bool:
    return is_sequence(value) and all(map(is_whole, value)) and sorted(value) == [0, 1, 2]


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.isidentifier()


MatrixLayout: TypeAlias = str
GemmSpecialization: TypeAlias = str
LoopScheduler: TypeAlias = str
PipelineVersion: TypeAlias = str
ElementOp: TypeAlias = str
DimOrder: TypeAlias = tuple[int, int, int]
VectorDim: TypeAlias = int
legal("MatrixLayout", *one_of(LAYOUTS))
legal("GemmSpecialization", *one_of(GEMM_SPECIALIZATIONS))
legal("LoopScheduler", *one_of(LOOP_SCHEDULERS))
legal("PipelineVersion", *one_of(PIPELINE_VERSIONS))
legal("ElementOp", 'a name such as "PassThrough"', "names", _is_name)
legal("VectorDim", "0, 1 or 2", "dimensions", lambda value: is_whole(value) and 0 <= value <= 2)
legal("DimOrder", "0, 1 and 2 in any order", "orders of 0, 1 and 2", _is_order)


def padded_dims(specialization: str) -> str:
    """Which of M, N and K a specialization pads.

    Example:
        >>> padded_dims("MNKPadding"), padded_dims("KPadding"), padded_dims("Default")
        ('MNK', 'K', '')
    """
    return specialization.removesuffix("Padding") if specialization.endswith("Padding") else ""


def padding(dims: str) -> str:
    """The specialization that pads these of M, N and K.

    Example:
        >>> padding("KM"), padding("")
        ('MKPadding', 'Default')
    """
    letters = "".join(dim for dim in "MNK" if dim in dims)
    return f"{letters}Padding" if letters else GEMM_SPECIALIZATIONS[0]
