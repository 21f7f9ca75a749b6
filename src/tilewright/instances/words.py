"""Legal values of an instance's fields, its architectures, and the rows of a check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.arch import Arch
from tilewright.argument_checks import is_sequence, is_whole, legal, one_of
from tilewright.calls import launches
from tilewright.errors import LaunchError, LegalityError, Violation, close_to, shown
from tilewright.targets.target import HIP

ROW, COLUMN = "row", "column"
LAYOUTS = (ROW, COLUMN)
"""The layout of a matrix: its rows are contiguous, or its columns."""

GEMM_SPECIALIZATIONS = (
    *("Default", "MPadding", "NPadding", "KPadding"),
    *("MNPadding", "MKPadding", "NKPadding", "MNKPadding"),
)
"""The extents of the problem that are padded to multiples of the block's tile."""

LOOP_SCHEDULERS = ("Default", "Interwave")
PIPELINE_VERSIONS = ("v1", "v2")

PASS_THROUGH = "PassThrough"
"""The element operation without effect."""


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
legal(
    "ElementOp",
    'a name such as "PassThrough"',
    "names",
    lambda value: isinstance(value, str) and value.isidentifier(),
)
legal("VectorDim", "0, 1 or 2", "dimensions", lambda value: is_whole(value) and 0 <= value <= 2)
legal(
    *("DimOrder", "0, 1 and 2 in any order", "orders of 0, 1 and 2"),
    lambda value: is_sequence(value) and all(map(is_whole, value)) and sorted(value) == [0, 1, 2],
)


def padded_dims(specialization: str) -> str:
    """Return the letters of M, N and K that a specialization pads.

    Example:
        >>> padded_dims("MNKPadding"), padded_dims("KPadding"), padded_dims("Default")
        ('MNK', 'K', '')
    """
    return specialization.removesuffix("Padding") if specialization.endswith("Padding") else ""


def padding(dims: str) -> str:
    """Return the specialization that pads some of M, N and K.

    Example:
        >>> padding("KM"), padding("")
        ('MKPadding', 'Default')
    """
    letters = "".join(dim for dim in "MNK" if dim in dims)
    return f"{letters}Padding" if letters else GEMM_SPECIALIZATIONS[0]


# ----------------------------------------------------------------
# Architectures with the matrix instructions of instances.


LDS_BYTES = 64 * 1024
"""Bytes of shared memory of a block if no architecture is given."""

FEATURES = {"wmma": "wmma", "xdl": "mfma"}
"""The feature of architectures with the matrix instructions of an instance."""


def machines() -> Mapping[str, Arch]:
    """Return AMD's architectures by name."""
    return HIP.architectures


# ----------------------------------------------------------------
# Rows of a check: value, limit, and a legal choice.


@launches.made("check(problem) of an instance gives them")
@dataclass(frozen=True)
class Check:
    """One rule of an instance, with the value found, the legal value and the nearest legal choice.

    Args:
        name: the rule, in the words of the template, e.g. ``"vector load of A"``.
        ok: whether the value is legal.
        value: the value.
        limit: the legal values.
        nearest: the nearest legal choice, a field of the instance or an extent of the problem, or "".

    Example:
        >>> print(Check("BlockSize", False, "128", "2 x 4 waves of 32 threads: 256", "block_size=256"))
        BlockSize: 128; legal: 2 x 4 waves of 32 threads: 256; nearest legal choice: block_size=256
    """

    name: str
    ok: bool
    value: str
    limit: str
    nearest: str = ""

    def __str__(self) -> str:
        said = f"{self.name}: {self.value}; legal: {self.limit}"
        return said + (f"; nearest legal choice: {self.nearest}" if self.nearest else "")


def checked(name: str, ok: bool, value: object, limit: str, nearest: str) -> Check:
    """Return the row of a rule, with the nearest legal choice only if the value is not legal."""
    return Check(name, ok, str(value), limit, "" if ok else nearest)


@launches.made("check(problem) of an instance gives them")
class Checks:
    """All rows of a check, in order; prints as a table.

    Args:
        subject: the instance that was checked.
        rows: the rows.

    Example:
        >>> checks = Checks("an instance", [Check("NumPrefetch", True, "1", "1 or 2")])
        >>> checks.ok, len(checks), checks["NumPrefetch"].value
        (True, 1, '1')
        >>> print(checks)
        ok  NumPrefetch  1  legal: 1 or 2
    """

    def __init__(self, subject: str, rows: Sequence[Check]) -> None:
        self.subject, self.rows = subject, tuple(rows)

    @property
    def ok(self) -> bool:
        """Whether all values are legal."""
        return not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        """The rows with illegal values."""
        return tuple(row for row in self.rows if not row.ok)

    def require(self) -> None:
        """Refuse illegal values.

        Raises:
            LegalityError: lists all illegal values.
        """
        if self.failed:
            found = [
                Violation(row.name, f"{row.value}; legal: {row.limit}", row.nearest) for row in self.failed
            ]
            raise LegalityError(self.subject, "its problem", found)

    def __getitem__(self, name: object) -> Check:
        names = [row.name for row in self.rows]
        if isinstance(name, str) and name in names:
            return self.rows[names.index(name)]
        near = close_to(name, names) if isinstance(name, str) else ""
        raise LaunchError(f"no check {shown(name)}; there are {', '.join(names)}{near}")

    def __iter__(self) -> Iterator[Check]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        cells = [
            (*("ok" if row.ok else "NO", row.name, row.value, f"legal: {row.limit}"), row.nearest)
            for row in self.rows
        ]
        widths = [max(len(row[at]) for row in cells) for at in range(4)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False))
            + (f"  -> {row[4]}" if row[4] else "")
            for row in cells
        ]
        return "\n".join(line.rstrip() for line in lines)

    def __repr__(self) -> str:
        return f"<{len(self.rows)} checks of {self.subject}: {len(self.failed) or 'none'} failed>"
