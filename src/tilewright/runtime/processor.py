"""What the host's processor is called."""

from __future__ import annotations

import functools
import platform
import re
from pathlib import Path


@functools.cache
def processor_name() -> str:
    """The CPU's name as the system lists it."""
    try:
        listed = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        listed = None
    return listed[1] if listed else platform.processor() or platform.machine()
