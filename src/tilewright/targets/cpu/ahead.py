"""Asking for the lines of the next panel while one is multiplied.

The rows that a panel is packed from lie far apart in memory, and nothing in the processor foresees them.  A
micro-kernel lasts for thousands of clocks in which memory has nothing to do: before each, some lines of the
next panel are asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.ops import Copy
from tilewright.ir.types import Memory
from tilewright.symbolic.expr import add, expand, mul
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import slope, substitute
from tilewright.targets.cpu.emitter import CACHE_LINE_BYTES, CpuEmitter
from tilewright.targets.statements import Code, call, code, named

UNROLLED = 4
"""Lines of one row that are asked for one by one; more are asked for in a loop."""


@dataclass
class Ahead:
    """The lines of the next panel.

    Args:
        emitter: where the text goes.
        source: the pointer.
        start: the offset of line ``line`` of row ``row``, which lie along the direction of no unit stride.
        row: the variable of rows.
        rows: how many there are.
        run: elements that lie side by side in each row.
        step: elements in a line.
        panel: the panel that is multiplied.
    """

    emitter: CpuEmitter
    source: Code
    start: Int
    row: Sym
    rows: int
    run: int
    step: int
    panel: Sym
    share: Code = field(init=False)
    most: Code = field(init=False)

    @staticmethod
    def of(emitter: CpuEmitter, op: Copy, panel: Sym, columns: int) -> Ahead | None:
        """The lines that a copy reads next; None where they do not lie evenly, or are in the cache anyway."""
        kind = op.source.tensor
        depth = op.target.tensor.shape[1]
        if kind.memory is not Memory.GLOBAL or not isinstance(depth, int):
            return None
        column, k = kind.view.coords
        steps = [slope(kind.view.offset, sym) for sym in (column, k)]
        if None in steps or 1 not in steps:
            return None
        row = Sym(emitter.local("row"), 0, depth - 1)
        first = mul(add(panel, 1), columns)
        across = steps[0] == 1  # whether columns are neighbours, and k counts the rows
        at = {column: first if across else add(first, row), k: row if across else 0}
        rows, run = (depth, columns) if across else (columns, depth)
        step = max(CACHE_LINE_BYTES // kind.dtype.bytes, 1)
        name = emitter.name(op.source.buffer)
        return Ahead(emitter, name, expand(substitute(kind.view.offset, at)), row, rows, run, step, panel)

    def begin(self, turns: Code, panels: Code, number: str = "") -> None:
        """Share the rows among so many turns; after the last panel there is nothing to ask for.

        Args:
            turns: among which they are shared.
            panels: how many there are.
            number: what tells the names of its variables from those of others beside it.
        """
        self.share, self.most = self.emitter.local(f"share{number}"), self.emitter.local(f"ahead{number}")
        following = code("{} + 1 < {}", named(self.panel.name), panels)
        self.emitter.constant("Index", self.most, code("{} ? {} : 0", following, self.rows))
        self.emitter.constant("Index", self.share, code("({} + {} - 1) / {}", self.most, turns, turns))

    def turn(self, at: Sym) -> None:
        """Ask for what one turn has to ask for."""
        index = named(at.name)
        row = named(self.row.name)
        end = self.emitter.within(code("({} + 1) * {}", index, self.share), self.most)
        with self.emitter.loop("Index", row, code("{} * {}", index, self.share), code("{} < {}", row, end)):
            place = code("{} + {}", self.source, self.emitter.spell(self.start))
            if self.run <= UNROLLED * self.step:
                # Of a row that begins inside of a line the panel before has asked for the first one.
                for last in reversed(range(self.run - 1, -1, -self.step)):
                    self.emitter.do(
                        call("__builtin_prefetch", code("{} + {}", place, last) if last else place)
                    )
                return
            each = self.emitter.local("line")
            with self.emitter.turns(each, self.run, self.step):
                self.emitter.do(call("__builtin_prefetch", code("{} + {}", place, each)))
