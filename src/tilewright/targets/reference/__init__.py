"""The reference target: the meaning of every operation in NumPy, the oracle, and the hazard checker."""

from tilewright.targets.reference import asynchronous, signals
from tilewright.targets.reference.findings import Access, Finding, Kind
from tilewright.targets.reference.meaning import REFERENCE
from tilewright.targets.reference.report import Report
from tilewright.targets.reference.run import bind_sizes, run

RULES = asynchronous, signals
"""Further rules; importing them adds them to `REFERENCE`."""

__all__ = ["REFERENCE", "Access", "Finding", "Kind", "Report", "bind_sizes", "run"]
