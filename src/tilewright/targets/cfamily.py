"""The base of all C targets: emitter, spelling of integers, and rules of control flow.

A target adds a rule table whose parent is `C_RULES` and a `Dialect`; its rules write lines to an `Emitter`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import PurePath

from tilewright.ir.builder import Names
from tilewright.ir.integer_ops import is_wide
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import (
    Block,
    For,
    Gather,
    GetVariable,
    If,
    Let,
    Op,
    PartitionOp,
    ReadIndex,
    Reshape,
    SetVariable,
    Variable,
)
from tilewright.ir.types import Value
from tilewright.passes.quotients import inverses
from tilewright.passes.rewrite import defined_names
from tilewright.symbolic.expr import maximum, minimum
from tilewright.symbolic.nodes import TRUE, Add, Cond, FloorDiv, Int, Mod, Sym, bits, bounds
from tilewright.symbolic.rebuilding import substitute, symbols
from tilewright.symbolic.spelling import Speller
from tilewright.targets.dialect import KEYWORDS, Dialect, not_reserved
from tilewright.targets.rules import RuleTable
from tilewright.targets.statements import (
    Arm,
    Assign,
    Body,
    Branch,
    Code,
    Comment,
    Declare,
    Do,
    ForLoop,
    InnerScope,
    Raw,
    Statement,
    call,
    code,
    named,
    write_about,
)

C_SPELLER = Speller(
    select=lambda c, a, b: f"({c} ? {a} : {b})",
    conjunction=" && ",
    disjunction=" || ",
    negation="!",
    true="true",
    false="false",
    # With an unsigned integer of 64 bits, C would compare and add unsigned.
    element=lambda text, element: f"(long long){text}" if element.low == -(1 << 63) else text,
)
"""C's spelling of integers and conditions; an emitter adds names, calls and divisions."""


class Emitter:
    """Collects lines of C for one kernel, following a rule table.

    Rules are called as ``rule(emitter, op)``.
    """

    def __init__(self, kernel: Kernel, rules: RuleTable, dialect: Dialect) -> None:
        self.kernel = kernel
        self.rules = rules
        self.dialect = dialect
        self.names = Names()
        self.body: Body = []  # the body that gets the next statement
        # 64-bit integers: sizes, numbers in variables and memory, and integers derived from them.
        self.wide = {p.sym for p in kernel.sizes if p.bits == 64}
        self.wide |= {op.result for op in kernel.walk() if is_wide(op)}
        self.from_memory = {op.result for op in kernel.walk() if isinstance(op, ReadIndex)}
        self._taken = set(KEYWORDS | dialect.reserved)
        for word in sorted(self._taken):
            self.names.unique(word)
        self._spelled = {name: self.identifier(name) for name in defined_names(kernel)}
        self.inverses = inverses(kernel)
        self._asked: set[str] = set()
        self.speller = replace(
            C_SPELLER, name=self._named, floordiv=self._quotient, mod=self._remainder, call=self._called
        )

    def identifier(self, name: str) -> Code:
        """Return a unique identifier of C that is close to the author's name."""
        plain = "".join(c if c.isascii() else f"u{ord(c):x}" for c in name)
        made = self.names.unique(not_reserved(plain))
        self._taken.add(made)
        return named(made)

    def name(self, of: Value | Sym) -> Code:
        """Return the C name of a value or symbol: the author's, unless C reserves it."""
        return named(self._spelled.get(of.name, of.name))

    def base(self, tensor: Value) -> Code:
        """Return the start of a tensor's buffer."""
        return self.name(tensor.buffer)

    def local(self, wanted: str) -> Code:
        """Return a name for a variable of an inner scope; other scopes may use it again."""
        name, count = wanted, 0
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        return named(name)

    def add(self, *statements: Statement) -> None:
        """Add statements."""
        self.body += statements

    def line(self, text: Code) -> None:
        """Add a verbatim line, if no statement class fits."""
        self.add(Raw(text))

    def do(self, what: Code) -> None:
        """Add an expression statement."""
        self.add(Do(what))

    def assign(self, target: Code, value: Code, operator: str = "=") -> None:
        """Add ``target = value;``."""
        self.add(Assign(target, value, operator))

    def declare(
        self,
        kind: Code,
        name: Code,
        value: Code | None = None,
        extent: int | None = None,
        *,
        optional: bool = False,
        comment: str = "",
    ) -> None:
        """Add ``kind name = value;``; ``optional`` if it is dropped when nothing uses the name."""
        self.add(Declare(kind, name, value, extent, optional, comment))

    def constant(self, kind: str, name: Code, value: Code) -> None:
        """Add ``const kind name = value;``, which is dropped when nothing uses the name."""
        self.declare(named(f"const {kind}"), name, value, optional=True)

    def comment(self, op: Op, text: str) -> None:
        """Add a comment: the author's line of an operation, and what the next text does."""
        self.add(Comment(self.place(op) + text))

    def place(self, op: Op) -> str:
        """Return the author's line of an operation, as the start of a comment."""
        if op.location is None:
            return ""
        frame, origin = op.location.frame, op.location.origin
        field = "" if origin is None else f" {origin.field}"
        return f"{PurePath(frame.file).name}:{frame.line}{field}: "

    @contextmanager
    def into(self, body: Body) -> Iterator[None]:
        """Add the statements of the with block to a body."""
        outer, self.body = self.body, body
        yield
        self.body = outer

    @contextmanager
    def indented(self) -> Iterator[None]:
        """``{ statements of the with block }``."""
        inner: Body = []
        self.add(InnerScope(inner))
        with self.into(inner):
            yield

    @contextmanager
    def branch(self, condition: Code) -> Iterator[None]:
        """``if (condition) statements of the with block``."""
        inner: Body = []
        self.add(Branch([Arm(condition, inner)]))
        with self.into(inner):
            yield

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """``else statements of the with block``, after a `branch`."""
        inner: Body = []
        last = self.body[-1]
        assert isinstance(last, Branch)
        last.arms.append(Arm(None, inner))
        with self.into(inner):
            yield

    @contextmanager
    def loop(
        self,
        kind: str,
        index: Code,
        start: Code | int,
        condition: Code,
        step: Code | int = 1,
        before: str = "",
    ) -> Iterator[None]:
        """``for (kind index = start; condition; index += step) statements of the with block``."""
        inner: Body = []
        self.add(ForLoop(named(kind), index, code("{}", start), condition, code("{}", step), inner, before))
        with self.into(inner):
            yield

    def block(self, block: Block) -> None:
        """Emit every operation of a block by its rule."""
        for op in block.ops:
            first = len(self.body)
            self.rules.lookup(op)(self, op)
            write_about(self.body[first:], op)

    def spell(self, value: Int, tight: bool = False) -> Code:
        """Spell an integer."""
        return self._spelled_by(lambda: self.speller.int(value, tight))

    def spell_cond(self, value: Cond) -> Code:
        """Spell a condition."""
        return self._spelled_by(lambda: self.speller.cond(value))

    def _spelled_by(self, spelling: Callable[[], str]) -> Code:
        """Return the text of an expression, together with the names that occur in it."""
        outer, self._asked = self._asked, set()
        text = spelling()
        made, self._asked = Code(text, self._asked), outer | self._asked
        return made

    def _named(self, sym: Sym) -> str:
        return self._uses(self.name(sym))

    def _called(self, name: str, first: str, second: str) -> str:
        return f"{self._uses(named(f'{name}_int'))}({first}, {second})"

    def _uses(self, found: Code) -> str:
        self._asked |= found.names
        return found

    def spell_wide(self, value: Int) -> Code:
        """Spell an integer for a variable of 64 bits."""
        return self.spell(value)

    def _quotient(self, left: str, right: str, node: FloorDiv) -> str:
        inverse = self._inverse(node)
        if inverse is not None:
            return self._uses(call("quotient", self.spell(node.left), inverse))
        return self._plain_quotient(left, right, node)

    def _remainder(self, left: str, right: str, node: Mod) -> str:
        inverse = self._inverse(node)
        if inverse is not None:
            return self._uses(call("remainder", self.spell(node.left), self.spell(node.right), inverse))
        return self._plain_remainder(left, right, node)

    def _plain_quotient(self, left: str, right: str, node: FloorDiv) -> str:
        """Division in C truncates, so a dividend that may be negative needs ``floor_div``."""
        if bounds(node.left)[0] >= 0:
            return f"{left} / {right}"
        return f"{self._uses(named('floor_div'))}({left}, {right})"

    def _plain_remainder(self, left: str, right: str, node: Mod) -> str:
        if bounds(node.left)[0] >= 0:
            return f"{left} % {right}"
        return f"{self._uses(named('floor_mod'))}({left}, {right})"

    def _inverse(self, node: FloorDiv | Mod) -> Code | None:
        """Return the divisor's inverse, if the launcher passes one and the dividend has 32 bits, or None."""
        sym = self.inverses.get(node.right)
        if sym is None or bounds(node.left)[0] < 0 or self.int_type(node.left) != "int":
            return None
        return self.name(sym)

    def int_type(self, *values: Int) -> str:
        """Return ``int``, or ``long long`` if one of the integers depends on a 64-bit integer."""
        return "long long" if any(self.wide & symbols(value) for value in values) else "int"

    def defined_type(self, sym: Sym, *values: Int) -> str:
        """Return the type of an integer that is computed from others; remember it if it has 64 bits."""
        if (kind := self.int_type(*values)) != "int":
            self.wide.add(sym)
        return kind


MOST_CLAMPED = 2**62
"""Largest excess of a loop's end over the 64-bit integers for which an integer from memory is clamped."""

C_RULES = RuleTable("c")
"""Rules shared by the C family."""


@C_RULES.rule(For)
def loop(emitter: Emitter, op: For, assume: str = "") -> None:
    """Write a loop; its end is computed once.  The builtin ``assume`` states that it has an iteration."""
    index, kind = emitter.name(op.index), emitter.defined_type(op.index, op.start, op.stop)
    start, stop = emitter.spell(op.start), emitter.spell(op.stop)
    if (symbols(op.start) | symbols(op.stop)) & emitter.from_memory:
        ends = [_within_64_bits(end, op.step, emitter.from_memory) for end in (op.start, op.stop)]
        if kind == "int" and 64 in map(bits, ends):
            emitter.wide.add(op.index)
            kind = "long long"
        start, stop = map(emitter.spell_wide, ends)
    if not isinstance(op.stop, int | Sym):
        end = emitter.local(f"{index}_end")
        emitter.declare(named(f"const {kind}"), end, stop)
        stop = end
    if assume:
        emitter.do(call(assume, code("{} < {}", start, stop)))
    before = emitter.dialect.unrolled(op.unroll)
    condition = code("{} < {}", index, stop)
    with emitter.loop(kind, index, start, condition, op.step, before):
        emitter.block(op.body)


def _within_64_bits(end: Int, step: int, from_memory: set[Sym]) -> Int:
    """Clamp an integer from memory in the end of a loop, if the end or the counter may overflow.

    The lost iterations have indices near the largest integers, outside of every array.
    """
    low, high = bounds(end)
    below, above = -(2**63) - low, high + step - 2**63
    terms = end.terms if isinstance(end, Add) else ((end, 1),)
    read = [term for term, factor in terms if isinstance(term, Sym) and factor == 1 and term in from_memory]
    if max(below, above) <= 0 or max(below, above) > MOST_CLAMPED or len(read) != 1:
        return end
    least, most = bounds(read[0])
    clamped: Int = read[0]
    if above > 0:
        clamped = minimum(clamped, int(most - above))
    if below > 0:
        clamped = maximum(clamped, int(least + below))
    made: Int = substitute(end, {read[0]: clamped})
    return made


@C_RULES.rule(If)
def _if(emitter: Emitter, op: If) -> None:
    always = op.condition == TRUE
    with emitter.indented() if always else emitter.branch(emitter.spell_cond(op.condition)):
        emitter.block(op.then)
    if op.otherwise.ops and not always:
        with emitter.otherwise():
            emitter.block(op.otherwise)


@C_RULES.rule(Variable)
def _variable(emitter: Emitter, op: Variable) -> None:
    emitter.declare(named("long long"), emitter.name(op.result), emitter.spell_wide(op.initial))


@C_RULES.rule(SetVariable)
def _set_variable(emitter: Emitter, op: SetVariable) -> None:
    emitter.assign(emitter.name(op.variable), emitter.spell_wide(op.value))


@C_RULES.rule(Let)
def _let(emitter: Emitter, op: Let) -> None:
    low, high = bounds(op.value)
    is_narrow = low >= -(2**31) and high < 2**31  # even if it depends on 64-bit integers
    kind = "int" if is_narrow else emitter.defined_type(op.result, op.value)
    value = emitter.spell(op.value)
    if symbols(op.value) & emitter.from_memory:
        emitter.from_memory.add(op.result)
        if kind == "int" and not is_narrow:
            emitter.wide.add(op.result)
            kind, value = "long long", emitter.spell_wide(op.value)
    emitter.constant(kind, emitter.name(op.result), value)


@C_RULES.rule(GetVariable)
def _get_variable(emitter: Emitter, op: GetVariable) -> None:
    emitter.constant("long long", emitter.name(op.result), emitter.name(op.variable))


@C_RULES.rule(ReadIndex)
def _read_index(emitter: Emitter, op: ReadIndex) -> None:
    view = op.source.tensor.view
    value = code("{}[{}]", emitter.base(op.source), emitter.spell(view.offset))
    if view.valid != TRUE:
        value = code("{} ? {} : 0", emitter.spell_cond(view.valid), value)
    emitter.constant(emitter.defined_type(op.result, op.result), emitter.name(op.result), value)


@C_RULES.rule(Reshape, Gather, PartitionOp)
def _no_text(emitter: Emitter, op: Reshape | Gather | PartitionOp) -> None:
    """Write nothing: the users of a view spell its offsets."""
