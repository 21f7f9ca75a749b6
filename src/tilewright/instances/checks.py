"""The answers of a check: each with its value, its limit, and what would be legal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilewright.calls import launches
from tilewright.errors import LaunchError, LegalityError, Violation, close_to, shown


@launches.made("check(problem) of an instance gives them")
@dataclass(frozen=True)
class Check:
    """One rule of an instance, with the value found, the legal value and the nearest legal choice.

    Args:
        name: what is asked, in the words of the template, e.g. ``"vector load of A"``.
        ok: whether it is legal.
        value: what is there.
        limit: what would be legal.
        nearest: the nearest legal choice, as a field of the instance or an extent of the problem; empty where
            it is legal as it is.

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


@launches.made("check(problem) of an instance gives them")
class Checks:
    """All answers of a check, in order; prints as a table.

    Args:
        subject: what was checked.
        rows: the answers.

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
        """Whether everything is legal."""
        return not self.failed

    @property
    def failed(self) -> tuple[Check, ...]:
        """What is not legal."""
        return tuple(row for row in self.rows if not row.ok)

    def require(self) -> None:
        """Refuse what is not legal.

        Raises:
            LegalityError: lists everything that is not.
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
            ("ok" if row.ok else "NO", row.name, row.value, f"legal: {row.limit}", _choice(row))
            for row in self.rows
        ]
        widths = [max(len(row[at]) for row in cells) for at in range(4)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]])
            for row in cells
        ]
        return "\n".join(line.rstrip() for line in lines)

    def __repr__(self) -> str:
        return f"<{len(self.rows)} checks of {self.subject}: {len(self.failed) or 'none'} failed>"


def _choice(row: Check) -> str:
    return f"-> {row.nearest}" if row.nearest else ""
