"""The table that the kernel for lists of arrays reads: what is known early, and where the arrays lie.

What stands in which column is said in `tilewright.schedule.lists`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tilewright.errors import LaunchError
from tilewright.ir.bulk_legality import wanted_maps
from tilewright.ir.copies import MAP_WORDS
from tilewright.ir.kernel import TensorMap
from tilewright.lang.specs import TensorSpec
from tilewright.runtime.executable import Executable
from tilewright.runtime.listed import ArrayList, Integers, ListMaps, ListShape
from tilewright.schedule.form import Form
from tilewright.schedule.lists import LAST, PLACES, SIZES, map_columns, mapped
from tilewright.schedule.schedule import Schedule

LISTS = {"a": "A", "b": "B", "bias": "bias", "out": "D"}
"""The lists, and what the kernel calls them."""

ROWS = 256
"""Of the table, a multiple: so that lists of any lengths share a kernel."""

MOST_TILES = 2**31 - 1


class Extents(NamedTuple):
    """Of one product."""

    m: int
    n: int
    k: int


def typical(extents: Sequence[Extents]) -> tuple[int, int, int, int]:
    """How many products of which M, N and K are as much work: the extents that work has on average.

    Example:
        >>> typical([Extents(100, 64, 64)] * 8)
        (8, 100, 64, 64)
        >>> typical([Extents(4, 64, 64)] * 50 + [Extents(1000, 64, 64)])
        (1, 834, 64, 64)
    """
    sizes = np.maximum(np.asarray(extents, np.float64), 1)
    work = np.prod(sizes, axis=1)
    m, n, k = (int(extent) for extent in np.ceil(np.average(sizes, axis=0, weights=work) - 1e-6))
    return max(round(work.sum() / (m * n * k)), 1), m, n, k


class ListTable:
    """What the kernel reads of each product of lists whose arrays have these extents and strides.

    Args:
        shapes: of each list.
        extents: of each product.
        form: what is computed.
        schedule: how.
        specs: what the kernel knows of each list, by its own names.

    Raises:
        LaunchError: more tiles than are counted.
    """

    def __init__(
        self,
        shapes: Mapping[str, ListShape],
        extents: Sequence[Extents],
        form: Form,
        schedule: Schedule,
        specs: Mapping[str, TensorSpec],
    ) -> None:
        ranks = {LISTS[name]: 1 + shape.steps.shape[1] for name, shape in shapes.items()}
        self._columns = map_columns(ranks, mapped(form, schedule, specs))
        self._maps = {name: ListMaps(shapes[name]) for name in shapes if LISTS[name] in self._columns}
        ends = (PLACES + sum(ranks.values()), *(column + MAP_WORDS for column in self._columns.values()))
        self._known = _known(shapes, extents, schedule, max(ends))
        self.products = len(extents)
        self._forms: tuple[Executable | None, dict[int, TensorMap]] = (None, {})

    @property
    def tiles(self) -> int:
        """Of all products."""
        return int(self._known[self.products - 1, LAST])

    def filled(self, lists: Mapping[str, ArrayList]) -> Integers:
        """The table with where each array begins, and nothing in the place of maps."""
        made, column = self._known.copy(), PLACES
        for list_ in lists.values():
            made[: self.products, column] = list_.starts
            column += 1 + list_.shape.steps.shape[1]
        return made

    def write_maps(self, table: Integers, lists: Mapping[str, ArrayList], executable: Executable) -> None:
        """Write the tensor map of every array that the kernel copies boxes of.

        Args:
            table: the table.
            lists: where the arrays lie.
            executable: the kernel, which says what boxes they are.
        """
        if not self._maps:
            return
        known, forms = self._forms
        if known is not executable:
            forms = {wanted.column: wanted.form for wanted in wanted_maps(executable.kernel)}
            self._forms = (executable, forms)
        for name, maps in self._maps.items():
            column = self._columns[LISTS[name]]
            if column not in forms:  # what threads store, since slices of it are no boxes
                continue
            words = maps.of(lists[name], forms[column], encoded=executable.listing is not None)
            table[: self.products, column : column + MAP_WORDS] = words


def _known(
    shapes: Mapping[str, ListShape], extents: Sequence[Extents], schedule: Schedule, columns: int
) -> Integers:
    """What the table has for lists that lie anywhere."""
    count = len(extents)
    table = np.zeros((-(-count // ROWS) * ROWS, columns), np.int64)
    sizes = np.asarray(extents, np.int64)
    tile = np.asarray(schedule.tile[:2][:: -1 if schedule.swap_ab else 1])
    table[:count, LAST] = np.cumsum(np.prod(-(-sizes[:, :2] // tile), axis=1))
    if table[count - 1, LAST] > MOST_TILES:
        raise LaunchError(
            f"grouped_matmul: {table[count - 1, LAST]} tiles of {tile[0]} x {tile[1]}; nearest legal choice: "
            f"lists with at most {MOST_TILES} of them"
        )
    table[:count, SIZES:PLACES] = sizes
    column = PLACES
    for shape in shapes.values():
        rank = shape.steps.shape[1]
        table[:count, column + 1 : column + 1 + rank] = shape.steps
        column += 1 + rank
    return table
