"""The reference target: the meaning of every operation in NumPy, the oracle, and the hazard checker."""

from tilewright.targets.reference.asynchronous import REFERENCE
from tilewright.targets.reference.findings import Access, Finding, Kind
from tilewright.targets.reference.report import Report
from tilewright.targets.reference.run import bind_sizes, run

__all__ = ["REFERENCE", "Access", "Finding", "Kind", "Report", "bind_sizes", "run"]
