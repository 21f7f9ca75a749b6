"""Clocks and power of a GPU while something is measured."""

from __future__ import annotations

import shutil
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

QUERY = {"mhz": "clocks.sm", "watts": "power.draw", "celsius": "temperature.gpu"}


@contextmanager
def watched(path: Path) -> Iterator[None]:
    """Have the vendor's tool write to a file ten times a second; without the tool nothing is written.

    Args:
        path: the file.
    """
    if not shutil.which("nvidia-smi"):
        yield
        return
    query = f"--query-gpu={','.join(QUERY.values())}"
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-lms", "100"]
    with path.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            process.terminate()


class Readings:
    """What was written so far.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def mark(self) -> int:
        """Now, for `since`."""
        return self.path.stat().st_size if self.path.exists() else 0

    def since(self, mark: int) -> dict[str, float]:
        """Medians of what was read since then; empty if nothing was."""
        text = self.path.read_bytes()[mark:].decode() if self.path.exists() else ""
        rows: list[list[float]] = []
        for line in text.splitlines():
            try:
                rows.append([float(word) for word in line.split(",")])
            except ValueError:
                continue  # a line that is not whole, or a figure that the device does not tell
        whole = [row for row in rows if len(row) == len(QUERY)]
        columns = zip(*whole, strict=True)
        return {name: statistics.median(values) for name, values in zip(QUERY, columns, strict=False)}
