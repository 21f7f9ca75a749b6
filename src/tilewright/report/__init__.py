"""Reports: everything that the library knows of one kernel, as one page that loads nothing, or as data.

`KernelFacts` collects the facts from the other packages, `page_of` lays them out, and `kernel_report` does
both.
"""

from tilewright.report.facts import KernelFacts
from tilewright.report.page import KernelReport, kernel_report, page_of

__all__ = ["KernelFacts", "KernelReport", "kernel_report", "page_of"]
