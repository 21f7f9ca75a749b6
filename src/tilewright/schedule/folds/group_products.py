"""The products of a warpgroup in the steps of a loop that carries a state, and the values between them.

A step has products inside of it (*scores*), and products that are summed along the loop (*mixtures*).  All
are asynchronous.  Each score has its own commit group; the warpgroup waits for it when it needs the score.

Mixtures are issued at the end of their step, or one step later.  Late mixtures run while the warpgroup
computes the values of the next step.  But then they need registers of two steps: the left operands of the
previous step, and the scores of the current one.  `is_late` decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tilewright.dataflow.nodes import ArrayPart, Cell, Folded, Map, Node, Reduce, Sum, walk
from tilewright.functions.table import CONVERSION
from tilewright.lang import operations as tw
from tilewright.lang.asynchrony import mma_async, mma_commit, mma_fence, mma_wait
from tilewright.lang.control import let, when
from tilewright.lang.fragments import Fragment
from tilewright.lang.scalars import Index
from tilewright.lang.transaction_barriers import arrive, wait
from tilewright.schedule.folds.block import FoldBlock
from tilewright.schedule.folds.form import FoldForm
from tilewright.schedule.folds.group_rings import ROWS, GroupRing, RowRing
from tilewright.schedule.folds.items import RowTile
from tilewright.schedule.folds.kept import kept_results
from tilewright.schedule.folds.operands import StepPlace
from tilewright.schedule.folds.rows import KEPT
from tilewright.schedule.folds.values import TileValues
from tilewright.schedule.pipeline import LoopStep, Verb, main_loop
from tilewright.schedule.schedule import Schedule

SUMS = 188
"""Most registers of a thread for scores, left operands and sums, if mixtures are late.  The remaining ones
hold addresses and the state."""

AT_ONCE = 208
"""Most registers of a thread for the same tiles, if mixtures run at the end of their step."""


@dataclass(frozen=True)
class Mixture:
    """A product along the loop that is added to a carried value.

    Args:
        at: index of the cell.
        cell: the cell.
        rest: the value to which the product is added.
        product: the product.
    """

    at: int
    cell: Cell
    rest: Node
    product: Sum

    @property
    def is_plain(self) -> bool:
        """Whether the product is added to the cell itself."""
        return self.rest is self.cell


def mixtures_of(form: FoldForm) -> tuple[Mixture, ...]:
    """The mixtures of a step, ordered by the last score that their left operand needs."""
    found = []
    for at, (cell, step) in enumerate(zip(form.fold.cells, form.fold.steps, strict=True)):
        if not isinstance(step, Map) or step.function != "add":
            continue
        for product, rest in (step.given, step.given[::-1]):
            if isinstance(product, Sum) and product in form.mixtures:
                found.append(Mixture(at, cell, rest, product))
                break

    def last(one: Mixture) -> int:
        inside = {id(node) for node in walk(one.product.a)}
        return max((at for at, score in enumerate(form.scores) if id(score) in inside), default=-1)

    return tuple(sorted(found, key=last))


def unconverted(node: Node) -> Node:
    """A value before its conversions.  If it were converted between products, ptxas would serialize them."""
    while isinstance(node, Map) and node.function in CONVERSION:
        node = node.given[0]
    return node


# ---------------------------------------------------------------- registers


def most_tiles(form: FoldForm, *, late: bool, kept: bool = False) -> float:
    """Most tiles of scores that a thread holds at the same time; left operands count half.

    Values are computed in the order in which mixtures need them.  Each takes the registers of a value that no
    later value reads.

    Args:
        form: the form.
        late: whether the left operands of the previous step are held, too.
        kept: whether a block keeps the values of its only step until results are stored.
    """
    lefts = {id(node): node for node in (unconverted(one.product.a) for one in mixtures_of(form))}
    passes = [(*lefts.values(), *form.fold.steps), tuple(store.value for store in form.passing)]
    if kept:
        passes = [(*form.fold.steps, *kept_results(form))]
    most = 0.0
    for values in filter(None, passes):
        seen = set(form.results)
        found = [node for one in values for node in walk(one, seen)]
        order = [node for node in found if id(node) in lefts or id(unconverted(node)) not in lefts]
        ends = {id(argument): at for at, node in enumerate(order) for argument in node.arguments}
        if late:  # left operands are converted after all values
            ends.update(dict.fromkeys(lefts, len(order)))
        live = {id(one) for one in form.scores}
        converted = 0.5 * len(lefts) * late
        most = max(most, len(live) + converted)
        for at, node in enumerate(order):
            live = {one for one in live if ends.get(one, -1) > at or one == id(node)}
            is_made = id(node) in lefts or any(isinstance(one, Sum) for one in walk(node))
            is_tile = is_made and {form.m, form.n} <= set(node.axes)
            live |= {id(node)} if is_tile else set()
            most = max(most, len(live) + converted)
            converted += 0.5 if id(node) in lefts and not late else 0
    return most


def registers_of(form: FoldForm, schedule: Schedule, *, late: bool) -> int:
    """Registers of a thread for scores, left operands and sums."""
    run, width = schedule.tile[1], schedule.width
    tiles = most_tiles(form, late=late, kept=schedule.fold == KEPT)
    return int(tiles * run / 2) + len(form.mixtures) * width // 2


def is_late(form: FoldForm, schedule: Schedule) -> bool:
    """Whether mixtures run one step later, while the values of the next step are computed."""
    if not all(one.is_plain for one in mixtures_of(form)):
        return True
    return registers_of(form, schedule, late=True) <= SUMS


# ---------------------------------------------------------------- one tile of rows


class GroupPlace(StepPlace):
    """A step of a warpgroup, which waits for a score when a value needs it."""

    def __init__(self, products: GroupProducts, step: LoopStep) -> None:
        super().__init__(products.block, step.index + products.turn.begin)
        self.products, self.loop_step = products, step

    def product(self, node: Sum, values: TileValues) -> Fragment:
        """A score of the step, after a wait for it."""
        return self.products.score(node, self.loop_step)


class GroupValues(TileValues):
    """The values of a step.  If a ring loads an array of one dimension, they read it from shared memory.

    Args:
        place: the step.
        known: values that are computed already, by the `id` of their nodes.
        rows: the ring of arrays of one dimension, or None.
        stage: the stage of the ring that has the step's rows.
    """

    def __init__(
        self, place: GroupPlace, known: Mapping[int, Any], rows: RowRing | None, stage: Index
    ) -> None:
        super().__init__(place, known)
        self.rows, self.stage = rows, stage

    def _loaded(self, part: ArrayPart) -> Fragment:
        row = None if self.rows is None else self.rows.row(self.stage, part)
        if row is None:
            return super()._loaded(part)
        return tw.load(row, self.place.spread(part.axes), name=f"r{part.operand.name}")


class GroupProducts:
    """The verbs of one warpgroup in one tile of rows.

    Args:
        block: the block.
        rings: the ring of each operand, by the `id` of its node.
        rows: the ring of arrays of one dimension, or None.
        g: index of the warpgroup.
        turn: the tile.
        cells: the carried values.
        parts: number of tiles along the depth of a score.
    """

    def __init__(
        self,
        block: FoldBlock,
        rings: Mapping[int, GroupRing],
        rows: RowRing | None,
        g: Index,
        turn: RowTile,
        cells: Sequence[Fragment],
        parts: Index = 1,
    ) -> None:
        self.block, self.form, self.rings, self.rows = block, block.form, rings, rows
        self.g, self.turn, self.cells, self.parts = g, turn, cells, parts
        form, run = block.form, block.schedule.tile[1]
        self.mixtures = mixtures_of(form)
        self.late = is_late(form, block.schedule)
        tiled = block.tiled[form.n]
        self.scores = {id(one): tw.accumulator(tiled, fill=None, name="scores") for one in form.scores}
        lefts = {id(one.product.a): one.product for one in self.mixtures}
        spread = tw.operand_a(tiled, run) if lefts else None
        self.weights = {
            key: tw.fragment(spread, form.element, name="weights") for key in lefts if spread is not None
        }
        first = TileValues(block.place, {})
        for node in _row_values(form):
            first.value(node)
        self.known = first.known
        """Values that are the same in all steps, computed once so that steps do not load their rows again."""

    def verbs(self) -> list[Verb]:
        """The verbs of one step."""
        if not self.block.schedule.resident:
            return [Verb("multiply", 0, self.multiply_in_parts), Verb("scale", 0, self.weigh)]
        if self.late:
            return [
                Verb("multiply", 0, self.multiply_scores),
                Verb("multiply", -1, self.multiply_late),
                Verb("retire", 0, self.retire_scores),
                Verb("scale", 0, self.weigh),
                Verb("retire", -1, self.retire_mixtures),
                Verb("scale", 0, self.keep),
            ]
        return [
            Verb("multiply", 0, self.multiply_scores),
            Verb("retire", 0, self.retire_scores),
            Verb("scale", 0, self.weigh),
            Verb("retire", 0, self.retire_mixtures),
        ]

    # ------------------------------------------------------------ products

    def multiply_scores(self, step: LoopStep) -> None:
        """Begin the scores of a step."""
        block, stages = self.block, dict[int, Index]()
        depth = block.schedule.tile[2]
        for node in self.form.scores:
            ring = self.rings[id(node.b)]
            stage = self._filled(ring, step, stages)
            mma_fence()
            rows, columns = self.rings[id(node.a)].tile(self.g, depth), ring.tile(stage, depth)
            mma_async(rows, columns, self.scores[id(node)], block.tiled[self.form.n], fresh=True)
            mma_commit()
            _queue(step).append(id(node))

    def multiply_in_parts(self, step: LoopStep, before: Index | None = None) -> None:
        """Compute the scores of a step in a loop over tiles of their depth.

        Args:
            step: the step.
            before: number of ring stages that the block used before this pass; default: before the loop.
        """
        block, form, parts = self.block, self.form, self.parts
        begin = let((self.turn.before if before is None else before) + step.index * parts)
        rings = list({id(ring): ring for ring in self.rings.values()}.values())
        for total in self.scores.values():
            tw.fill(total, 0)

        def multiply(part: LoopStep) -> None:
            stages = {}
            for ring in rings:
                stages[id(ring)], parity = ring.place(begin + part.index)
                wait(ring.full[stages[id(ring)]], parity)
            mma_fence()
            depth = block.schedule.tile[2]
            for node in form.scores:
                rows, columns = (self.rings[id(one)] for one in (node.a, node.b))
                own = rows.tile(stages[id(rows)], depth).tile((ROWS, depth), (self.g, 0))
                tile = columns.tile(stages[id(columns)], depth)
                mma_async(own, tile, self.scores[id(node)], block.tiled[form.n])
            mma_commit()

        def retire(part: LoopStep) -> None:
            mma_wait(part.behind)  # outside of branches, or ptxas would serialize the products
            with nullcontext() if part.inside is True else when(part.inside):
                for ring in rings:
                    arrive(ring.empty[ring.place(begin + part.index)[0]], each="warp")

        main_loop([Verb("multiply", 0, multiply), Verb("retire", -1, retire, outside=True)], parts)
        step.shared["done"] = list(form.scores)

    def second_pass(self, done: TileValues) -> list[Verb]:
        """The verbs of a step that computes its values again, and stores them.

        Args:
            done: the values after the loop.
        """
        block, form = self.block, self.form
        before = let(self.turn.before + self.turn.count * self.parts)

        def write(step: LoopStep) -> None:
            self.multiply_in_parts(step, before)
            known = {**done.known, **{id(one): self.scores[id(one)] for one in form.scores}}
            values = TileValues(StepPlace(block, step.index), known)
            block.store_each(form.passing, values)

        return [Verb("multiply", 0, write)]

    def multiply_late(self, step: LoopStep) -> None:
        """Begin all mixtures of a step."""
        stages = dict[int, Index]()
        for mixture in self.mixtures:
            self._filled(self.rings[id(mixture.product.b)], step, stages, is_mixed=True)
        mma_fence()
        for mixture in self.mixtures:
            self._mix(mixture, stages)
        mma_commit()
        _queue(step).append(0)

    def _filled(
        self, ring: GroupRing, step: LoopStep, stages: dict[int, Index], *, is_mixed: bool = False
    ) -> Index:
        """Return the stage of a step, after a wait until it is full.

        Args:
            ring: the ring.
            step: the step.
            stages: stages that are known already, by the `id` of the ring; this one is added.
            is_mixed: whether a mixture reads it; it does not wait if scores have read the stage before.
        """
        if id(ring) not in stages:
            stages[id(ring)], parity = ring.place(self.turn.before + step.index)
            if not (is_mixed and ring.operand.is_scored):
                wait(ring.full[stages[id(ring)]], parity)
        return stages[id(ring)]

    def _mix(self, mixture: Mixture, stages: Mapping[int, Index]) -> None:
        node, ring = mixture.product, self.rings[id(mixture.product.b)]
        tile = ring.tile(stages[id(ring)], self.block.schedule.width).permute(1, 0)
        axis = mixture.cell.axes[1]
        assert axis is not None, "the columns of a result"
        mma_async(self.weights[id(node.a)], tile, self.cells[mixture.at], self.block.tiled[axis])

    def retire_scores(self, step: LoopStep) -> None:
        """Wait for the first score of a step."""
        if self.form.scores:
            self.score(self.form.scores[0], step)

    def score(self, node: Sum, step: LoopStep) -> Fragment:
        """Wait for a score of the step; release its right operand's stage after the stage's last reader."""
        queue = _queue(step)
        if id(node) in queue:  # commit groups complete in order
            at = queue.index(id(node))
            mma_wait(len(queue) - 1 - at)
            del queue[: at + 1]
        ring = self.rings[id(node.b)]
        done = step.shared.setdefault("done", [])
        if node not in done:
            done.append(node)
            readers = [one for one in self.form.scores if self.rings[id(one.b)] is ring]
            if not ring.operand.is_mixed and all(one in done for one in readers):
                self._release(ring, step)
        return self.scores[id(node)]

    def retire_mixtures(self, step: LoopStep) -> None:
        """Wait for the mixtures of a step, and release their tiles."""
        mma_wait(0)
        _queue(step).clear()
        rings = {id(ring): ring for ring in (self.rings[id(one.product.b)] for one in self.mixtures)}
        for ring in rings.values():
            self._release(ring, step)

    def _release(self, ring: GroupRing, step: LoopStep) -> None:
        arrive(ring.empty[ring.place(self.turn.before + step.index)[0]], each="warp")

    # ------------------------------------------------------------ values

    def weigh(self, step: LoopStep) -> None:
        """Compute the new values of a step, except those that depend on mixtures in flight."""
        form, cells = self.form, self.cells
        known: dict[int, Any] = {**self.known, **dict(zip(map(id, form.fold.cells), cells, strict=True))}
        known |= {id(one): self.scores[id(one)] for one in step.shared.get("done", ())}
        stage: Index = 0
        if self.rows is not None:
            stage, parity = self.rows.place(self.turn.before + step.index)
            wait(self.rows.full[stage], parity)
        values = GroupValues(GroupPlace(self, step), known, self.rows, stage)
        mixed = {one.at for one in self.mixtures}
        if not self.late:
            self._mix_at_once(values, step)
        made = [values.value(new) if at not in mixed else None for at, new in enumerate(form.fold.steps)]
        if self.late:
            for one in self.mixtures:
                for node in _without(one.rest, one.cell):
                    values.value(node)
            for one in self.mixtures:
                values.hidden(unconverted(one.product.a), 0)
        for at, (cell, held, new) in enumerate(zip(form.fold.cells, cells, made, strict=True)):
            if at not in mixed and new is not held:
                held.assign(values.carried(new, cell))
        if self.rows is not None:
            arrive(self.rows.empty[stage], each="warp")
        step.shared["values"] = values

    def _mix_at_once(self, values: TileValues, step: LoopStep) -> None:
        """Begin each mixture as soon as its left operand is known."""
        stages, kept = dict[int, Index](), set[int]()
        for mixture in self.mixtures:
            node = mixture.product
            if id(node.a) not in kept:
                self.weights[id(node.a)].assign(self.block.left(node, values))
                kept.add(id(node.a))
            self._filled(self.rings[id(node.b)], step, stages, is_mixed=True)
            mma_fence()
            self._mix(mixture, stages)
            mma_commit()
            _queue(step).append(id(node))

    def keep(self, step: LoopStep) -> None:
        """Compute the values that depend on the completed mixtures, and keep the next left operands."""
        values, kept = step.shared["values"], set[int]()
        for one in self.mixtures:
            if not one.is_plain:
                cell = one.cell
                self.cells[one.at].assign(values.repeated(values.value(one.rest), cell.axes, cell.dtype))
        for one in self.mixtures:
            node = one.product
            if id(node.a) not in kept:
                self.weights[id(node.a)].assign(self.block.left(node, values))
                kept.add(id(node.a))


def _queue(step: LoopStep) -> list[int]:
    """The commit groups in flight, in order: the `id` of a product, or 0 for all late mixtures."""
    queue: list[int] = step.shared.setdefault("queue", [])
    return queue


def _row_values(form: FoldForm) -> Iterator[Node]:
    """The largest subexpressions that read arrays, vary only along rows, and are equal in all steps."""
    inside, known = [*form.inside()], set[int]()
    for node in inside:
        below = [*walk(node)]
        varies = any(isinstance(one, Cell | Folded | Sum | Reduce) for one in below)
        if {*node.axes} - {None} == {form.m} and not varies:
            known |= {id(node)} if any(isinstance(one, ArrayPart) for one in below) else set()
    for node in inside:
        if id(node) not in known:
            yield from (one for one in node.arguments if id(one) in known)


def _without(node: Node, late: Node) -> Iterator[Node]:
    """The largest subexpressions of ``node`` that do not depend on the cell ``late``."""
    if all(one is not late for one in walk(node)):
        yield node
    elif node is not late:
        for argument in node.arguments:
            yield from _without(argument, late)
