"""What the verbs that measure schedules share: the products they are asked about, and a bar for who waits."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tilewright.cli.console import UsageError, choose, choose_precision
from tilewright.cli.matrices import LAYOUTS, check_memory, chosen_dtype
from tilewright.dataflow.nodes import EXACT, TF32
from tilewright.inspect.typed import whole
from tilewright.runtime.drivers import driver_for
from tilewright.targets.target import TARGETS
from tilewright.tune.gemm import Gemm
from tilewright.tune.readings import Readings, watched

OPERATIONS = ("gemm",)
"""What can be measured; others of the family come with their schedules."""

Extents = tuple[int, int, int]
FIELDS = ("shape", "dtype", "layout", "precision")
"""Of a product in a file."""


def products(
    operation: str,
    given: Sequence[str],
    *,
    dtype: str,
    layout: str,
    precision: str,
    target: str,
    example: str,
) -> list[Gemm]:
    """The products that the command line asks about.

    Args:
        operation: one of `OPERATIONS`.
        given: extents M N K, three for each product, MxNxK, or names of files of JSON.
        dtype: of A and B, where a file does not say.
        layout: how they are stored, likewise.
        precision: of f32, likewise.
        target: where they are computed.
        example: a command that is right.

    Raises:
        UsageError: what is asked for cannot be; says what can.
    """
    choose("operation", operation, OPERATIONS)
    choose("target", target, tuple(TARGETS))
    said = {"dtype": dtype, "layout": layout, "precision": precision}
    found: list[dict[str, Any]] = []
    numbers: list[str] = []
    for text in given:
        if text.endswith(".json"):
            found += [said | product for product in _read(Path(text))]
        else:
            numbers += text.split("x") if re.fullmatch(r"\d+x\d+x\d+", text) else [text]
    if len(numbers) % 3 or not (numbers or found):
        raise UsageError(
            f"{len(numbers)} extents ({' '.join(numbers)}); give three for each product, e.g. {example}"
        )
    extents = [whole("an extent", text, example) for text in numbers]
    found += [said | {"shape": extents[at : at + 3]} for at in range(0, len(extents), 3)]
    return list(dict.fromkeys(_gemm(product, target) for product in found))


def _read(path: Path) -> list[dict[str, Any]]:
    """The products of a file: a list of extents [M, N, K], or of objects with the fields `FIELDS`."""
    nearest = 'e.g. [[512, 512, 512], {"shape": [64, 64, 4096], "dtype": "bf16", "layout": "nt"}]'
    try:
        listed = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON: {error}; {nearest}") from None
    found = (
        [{"shape": one} if isinstance(one, list) else one for one in listed]
        if isinstance(listed, list)
        else []
    )
    for one in found or [None]:
        if not isinstance(one, dict) or "shape" not in one or not {*one} <= {*FIELDS}:
            raise UsageError(f"{path} is no list of products; {nearest}")
    return found


def _gemm(said: dict[str, Any], target: str) -> Gemm:
    shape = said["shape"]
    whole_numbers = isinstance(shape, list) and all(type(extent) is int and extent > 0 for extent in shape)
    if not whole_numbers or len(shape) != 3:
        raise UsageError(f"extents {shape}; the extents M N K must be three positive whole numbers")
    element = chosen_dtype(str(said["dtype"]))
    choose("layout", str(said["layout"]), LAYOUTS)
    choose_precision(str(said["precision"]), (EXACT, TF32), element.name)
    m, n, k = shape
    check_memory((m, n, k), element)
    return Gemm((m, n, k), element.name, said["layout"], said["precision"], target)


class Bar:
    """A bar on a terminal for each step, drawn when something is done, so that it disturbs no timing."""

    def __init__(self) -> None:
        self._shown: Any = None
        self._tasks: dict[str, Any] = {}

    def __call__(self, step: str, done: int, total: int) -> None:
        """So much of a step is done."""
        if self._shown is None:
            return
        if step not in self._tasks:
            self._tasks[step] = self._shown.add_task(step, total=total)
        self._shown.update(self._tasks[step], completed=done, total=total)
        self._shown.refresh()

    @contextlib.contextmanager
    def drawn(self) -> Iterator[None]:
        """Draw meanwhile, where the standard error is a terminal; the bar is gone afterwards."""
        if sys.stderr is None or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        console = Console(stderr=True)
        with Progress(*columns, console=console, auto_refresh=False, transient=True) as self._shown:
            try:
                yield
            finally:
                self._shown, self._tasks = None, {}


@contextlib.contextmanager
def read_clocks(target: str) -> Iterator[Readings | None]:
    """The clocks and the power of a target's device meanwhile; None of one without a device."""
    if driver_for(target) is None:
        yield None
        return
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "clocks.csv")
        with watched(path):
            yield Readings(path)
