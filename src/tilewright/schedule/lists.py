"""Lists of arrays: a batch of products whose items have different addresses, extents and strides.

A table in memory has a row for each item: the number of tiles up to the item's last, its extents M, N and K,
the address and the strides of each of its arrays, and a tensor map of each array that bulk copies move.
Blocks compute the tiles of all items one after the other, and find the item of a tile by bisection.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import lcm
from typing import Any

from tilewright.dataflow.nodes import Operand
from tilewright.dtypes import DType
from tilewright.ir.copies import MAP_WORDS
from tilewright.lang.asynchrony import by_map
from tilewright.lang.control import index, let, var, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.launch import block_index
from tilewright.lang.scalars import Index, ceil_div, maximum, minimum, unwrap
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tensors import Tensor
from tilewright.schedule.bulk_views import against_store
from tilewright.schedule.facts import Reasons, ScheduleFacts
from tilewright.schedule.form import Form
from tilewright.schedule.partition import Partition, TileOrder, against_unknown_tiles
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.work import MOST, Work, last_not_after, natural
from tilewright.symbolic.nodes import Int
from tilewright.views.transforms import AsStrided

TABLE = "table"
"""The kernel's parameter for the table: i64, a row for each item; later rows are not read."""

COUNT = "count"
"""The kernel's parameter for the number of items."""

LAST, SIZES, PLACES = 0, 1, 4
"""Columns of the table: the number of tiles up to an item's last, its extents M, N, K, and its arrays."""


def map_columns(ranks: Mapping[str, int], mapped: Collection[str]) -> dict[str, int]:
    """Columns at which the tensor maps of the arrays begin; a row ends with the last map.

    Args:
        ranks: for each list, 1 plus the rank of its arrays, in the order of the table.
        mapped: lists with tensor maps.

    Example:
        >>> map_columns({"A": 3, "B": 3, "D": 3}, ("A", "B"))
        {'A': 16, 'B': 32}
    """
    first = -(-(PLACES + sum(ranks.values())) // MAP_WORDS) * MAP_WORDS
    return {name: first + MAP_WORDS * at for at, name in enumerate(name for name in ranks if name in mapped)}


def mapped(form: Form, schedule: Schedule, specs: Mapping[str, TensorSpec]) -> tuple[str, ...]:
    """The names of lists with tensor maps: bulk copies load or store their arrays.

    Args:
        form: the form.
        schedule: the schedule.
        specs: the common class of all arrays of each list, by name.
    """
    if not schedule.by_bulk:
        return ()
    stored = (
        [store.operand.name for store in form.stores]
        if schedule.epilogue_class.is_buffered and not schedule.epilogue_class.hands_over
        else []
    )
    by_bulk = (name for name in stored if not any(against_store(name, specs[name])))
    return (form.a.name, form.b.name, *by_bulk)


@dataclass
class ListedArray:
    """The arrays of a list, as one array with a leading dimension.

    Args:
        buffer: the memory that contains all arrays.
        table: the table of their places.
        column: the column with the start of an array; its strides follow.
        spec: the common class of all arrays, with the leading dimension.
        lengths: the extents of the other dimensions, by their names in the graph.
        map_column: the column at which the array's tensor map begins; None: there are no maps.
    """

    buffer: Tensor
    table: Tensor
    column: int
    spec: TensorSpec
    lengths: tuple[Int, ...]
    map_column: int | None = None
    matrix: Tensor = field(init=False)
    """The array of the current item."""

    @staticmethod
    def of(
        form: Form, schedule: Schedule, specs: Mapping[str, TensorSpec], arguments: Mapping[str, Any]
    ) -> dict[str, ListedArray]:
        """The lists of a kernel, by the names of the graph's arrays.

        Args:
            form: the form.
            schedule: the schedule.
            specs: the common class of all arrays of each list, in the order of the table.
            arguments: the memory that contains them, and the table.
        """
        shapes = {one.name: one.shape for one in form.flow.parameters if isinstance(one, Operand)}
        ranks = {name: spec.rank for name, spec in specs.items()}
        maps = map_columns(ranks, mapped(form, schedule, specs))
        found, column = {}, PLACES
        for name, spec in specs.items():
            buffer, table, lengths = arguments[name], arguments[TABLE], shapes[name][1:]
            found[name] = ListedArray(buffer, table, column, spec, lengths, maps.get(name))
            column += spec.rank
        return found

    def __post_init__(self) -> None:
        # Before the first item, the contiguous dimension and divisors of extents and strides are known.
        lengths = [MOST // divisor * divisor for divisor in self.spec.extent_divisors[1:]]
        known = enumerate(self.spec.stride_divisors[1:])
        strides = [1 if self._is_unit(dim) else max(divisor, 2) for dim, divisor in known]
        self.matrix = self._viewed(lengths, strides, 0, 0)

    @property
    def dtype(self) -> DType:
        """Dtype of the elements."""
        return self.buffer.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """The number of arrays, and the extents of the current item's array."""
        return (self.table.shape[0], *self.matrix.shape)

    def begin(self, item: Index, sizes: Mapping[Int, Index]) -> None:
        """Make an item the current one: read the place of its array.

        Args:
            item: index of the item.
            sizes: its extents, by their names in the graph.
        """
        per_start = max(self.spec.align // self.spec.dtype.bytes, 1)
        start = index(self.table[item, self.column], 0, multiple=per_start)
        strides: list[Index] = []
        for dim in range(self.spec.rank - 1):
            place, divisor = self.table[item, self.column + 1 + dim], self.spec.stride_divisors[dim + 1]
            least = None if self.spec.signed else 0
            stride = 1 if self._is_unit(dim) else index(place, least, multiple=divisor)
            strides.append(stride)
        self.matrix = self._viewed([sizes[length] for length in self.lengths], strides, start, item)

    def __getitem__(self, at: tuple[Any, ...]) -> Tensor:
        """A part of the array of the current item."""
        _, *rest = at
        return self.matrix if all(part == slice(None) for part in rest) else self.matrix[tuple(rest)]

    def _is_unit(self, dim: int) -> bool:
        return self.spec.unit_dim == dim + 1

    def _viewed(
        self, lengths: Sequence[Index], strides: Sequence[Index], start: Index, item: Index
    ) -> Tensor:
        shape, steps = (tuple(unwrap(one) for one in given) for given in (lengths, strides))
        matrix = self.buffer._view(AsStrided(shape, steps, unwrap(start)), "of_item")
        return matrix if self.map_column is None else by_map(matrix, self.table, item, self.map_column)


class ListTiles(Partition):
    """A persistent grid whose blocks compute tiles of all items.

    Args:
        form: the form.
        schedule: the schedule.
        arguments: the kernel's lists and its table.
    """

    cuts_arrays = True

    @classmethod
    def takes(cls, form: Form, schedule: Schedule) -> bool:
        """Whether each batch item has its own arrays."""
        return form.lists

    @classmethod
    def of(cls, form: Form, schedule: Schedule, arguments: Mapping[str, Any]) -> Partition:
        """The partition of a kernel."""
        return cls(form, schedule, arguments)

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """Blocks compute the tiles of all arrays of a list, each with its own extents."""
        schedule, product = facts.schedule, facts.form.sum
        if not facts.form.lists:
            return
        what = "the extents and addresses of the arrays are known only on the device"
        if not schedule.blocks:
            text = f"blocks=0, one block for each tile; {what}, so the number of tiles is unknown at launch"
            yield "blocks", text, "blocks= the number of blocks that run at the same time", product
        yield from against_unknown_tiles(facts, what, "neighbouring tiles may belong to two arrays", what)

    def __init__(self, form: Form, schedule: Schedule, arguments: Mapping[str, Any]) -> None:
        self.form, self.schedule, self.order = form, schedule, TileOrder.of(schedule)
        self.table: Tensor = arguments[TABLE]
        self.lists = [one for one in arguments.values() if isinstance(one, ListedArray)]
        self.count: Index = arguments[COUNT]
        block = block_index(schedule.blocks)
        tiles = index(self.table[self.count - 1, LAST], 0, MOST + 1)
        turns = let(ceil_div(maximum(tiles - block, 0), schedule.blocks))
        self.block, self.turns = block, turns

    def items(self, each: int = 1, group: Index = 0) -> Iterator[Work]:
        """The block's tiles; or, for groups that take turns, every ``each``-th of them.

        Only the table has the number of steps of a tile, so that every group visits the tiles of all groups.
        """
        form, (tile_m, tile_n, tile_k) = self.form, self.schedule.tile
        done = var(0)
        for turn in traced_range(self.turns):
            number = let(natural(self.block + turn * self.schedule.blocks))
            item = last_not_after(number, self.count, self._first)
            at = let(natural(number - self._first(item)))
            sizes = self._sizes(item)
            tiles_m = let(maximum(ceil_div(sizes[form.m.extent], tile_m), 1))
            tiles_n = let(maximum(ceil_div(sizes[form.n.extent], tile_n), 1))
            m, n = self.order.place(at, tiles_m, tiles_n)
            steps = let(ceil_div(sizes[form.a.depth.extent], tile_k))
            for one in self.lists:
                one.begin(item, sizes)
            first = let(done.get())
            done.set(first + steps)
            # The previous tile of the same group has a number that is smaller by `blocks * each`.
            begins = at < self.schedule.blocks * each
            work = Work((item,), m, n, first, steps, turn, group, begins=begins)
            if each == 1:
                yield work
                continue
            with when(turn % each == group):
                yield replace(work, item=turn // each)

    def _first(self, item: Index) -> Index:
        """The number of an item's first tile."""
        before = index(self.table[maximum(item - 1, 0), LAST], 0, MOST + 1)
        return before * minimum(item, 1)

    def _sizes(self, item: Index) -> dict[Int, Index]:
        """The extents of an item, by their names in the graph."""
        form, found = self.form.arranged(False), {}  # the table has the extents of the author's order
        for at, extent in enumerate((form.m.extent, form.n.extent, form.a.depth.extent)):
            known = ((one.spec, one.lengths) for one in self.lists)
            divisors = (  # each divides the extents of all items
                spec.extent_divisors[dim + 1]
                for spec, lengths in known
                for dim, length in enumerate(lengths)
                if length == extent
            )
            place = self.table[item, SIZES + at]
            found[extent] = index(place, 0, MOST + 1, multiple=lcm(*divisors))
        return found
