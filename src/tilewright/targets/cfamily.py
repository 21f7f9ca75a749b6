"""What all targets that emit C share: an emitter, the spelling of integers, and the rules of control flow.

A target adds a rule table whose parent is `C_RULES` and a `Dialect`; its rules write lines to an `Emitter`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from tilewright.dtypes import DType
from tilewright.ir.builder import Names
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import (
    Block,
    For,
    Gather,
    GetVariable,
    If,
    Let,
    Op,
    Partition,
    ReadIndex,
    Reshape,
    SetVariable,
    Variable,
)
from tilewright.ir.types import Value
from tilewright.passes.quotients import inverses
from tilewright.passes.rewrite import defined_names
from tilewright.symbolic.nodes import TRUE, Cond, FloorDiv, Int, Mod, Sym
from tilewright.symbolic.ranges import bits, bounds
from tilewright.symbolic.rebuilding import symbols
from tilewright.symbolic.spelling import Speller
from tilewright.targets.rules import RuleTable


def _c_floordiv(left: str, right: str, node: FloorDiv) -> str:
    return f"{left} / {right}" if bounds(node.left)[0] >= 0 else f"floor_div({left}, {right})"


def _c_mod(left: str, right: str, node: Mod) -> str:
    return f"{left} % {right}" if bounds(node.left)[0] >= 0 else f"floor_mod({left}, {right})"


C_SPELLER = Speller(
    floordiv=_c_floordiv,
    mod=_c_mod,
    call=lambda name, a, b: f"{name}_int({a}, {b})",
    select=lambda c, a, b: f"({c} ? {a} : {b})",
    conjunction=" && ",
    disjunction=" || ",
    negation="!",
    true="true",
    false="false",
)
"""C's spelling of integers.  Division truncates in C: operands that may be negative call ``floor_div``."""

INTEGER_PRELUDE = {
    "floor_div": "int floor_div(int a, int b) { return a / b - (a % b != 0 && a < 0); }",
    "floor_mod": "int floor_mod(int a, int b) { return (a % b + b) % b; }",
    "min_int": "int min_int(int a, int b) { return a < b ? a : b; }",
    "max_int": "int max_int(int a, int b) { return a > b ? a : b; }",
}
"""Functions that spelled integers may call; a target emits those that its text names."""


_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const
consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do
double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable
namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template
this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t
while xor xor_eq main
"""
KEYWORDS = frozenset(_KEYWORDS.split())
"""Words of C++ that no variable may have as its name."""


@dataclass(frozen=True)
class Atomic:
    """A function of the prelude that reduces into memory in one step: ``function(address, value)``.

    Args:
        function: its name; one of several elements takes the address of the values.
        width: elements at once.
        feature: what the architecture must have; empty for none.
    """

    function: str
    width: int = 1
    feature: str = ""


@dataclass(frozen=True)
class Dialect:
    """How one member of the C family spells things.

    Args:
        types: the name of each dtype's storage type.
        function: qualifiers of a helper function in the prelude.
        unroll: the line before a loop that is to be unrolled.
        reserved: names that the generated text uses itself, besides C++'s keywords.
        atomics: for each kind of reduction and element type, the functions that do it.
    """

    types: dict[str, str]
    function: str = "static inline"
    unroll: str = "#pragma unroll"
    reserved: frozenset[str] = frozenset()
    atomics: Mapping[tuple[str, str], tuple[Atomic, ...]] = field(default_factory=dict)

    def type(self, dtype: DType) -> str:
        """The storage type of a dtype."""
        return self.types[dtype.name]


class Emitter:
    """Collects lines of C for one kernel, following a rule table.

    Rules are called as ``rule(emitter, op)``.
    """

    def __init__(self, kernel: Kernel, rules: RuleTable, dialect: Dialect) -> None:
        self.kernel = kernel
        self.rules = rules
        self.dialect = dialect
        self.names = Names()
        self.lines: list[str] = []
        # Integers of 64 bits: sizes, what variables and memory hold, and what is named or counted with them.
        self.wide = {p.sym for p in kernel.sizes if p.bits == 64}
        given = [op.result for op in kernel.walk() if isinstance(op, GetVariable | ReadIndex)]
        self.wide |= {sym for sym in given if bits(sym) == 64}
        self._depth = 1
        self._taken = set(KEYWORDS | dialect.reserved)
        for word in sorted(self._taken):
            self.names.unique(word)
        self._spelled = {name: self.identifier(name) for name in defined_names(kernel)}
        self.inverses = inverses(kernel)
        self.speller = replace(C_SPELLER, name=self.name, floordiv=self._quotient, mod=self._remainder)

    def identifier(self, name: str) -> str:
        """A name that C takes, close to the author's, and that nothing else will get."""
        plain = "".join(c if c.isascii() else f"u{ord(c):x}" for c in name)
        made = self.names.unique(plain)
        self._taken.add(made)
        return made

    def name(self, of: Value | Sym) -> str:
        """The C name of a value or symbol: the author's, unless it is taken by the language."""
        return self._spelled.get(of.name, of.name)

    def local(self, wanted: str) -> str:
        """A name for a variable of an inner scope: none of the kernel's; other scopes may use it again."""
        name, count = wanted, 0
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        return name

    def line(self, text: str = "") -> None:
        """Add a line at the present indentation."""
        self.lines.append("  " * self._depth + text if text else "")

    def comment(self, op: Op, text: str) -> None:
        """Say at which of the author's lines the next text was written, and what it does."""
        where = ""
        if op.location is not None:
            frame = op.location.frame
            where = f"{PurePath(frame.file).name}:{frame.line}: "
        self.line(f"// {where}{text}")

    @contextmanager
    def indented(self, head: str, tail: str = "}") -> Iterator[None]:
        """``head {``, the lines of the with block indented, ``}``."""
        self.line(f"{head} {{" if head else "{")
        self._depth += 1
        yield
        self._depth -= 1
        self.line(tail)

    def block(self, block: Block) -> None:
        """Emit every operation of a block by its rule."""
        for op in block.ops:
            self.rules.lookup(op)(self, op)

    def spell(self, value: Int, tight: bool = False) -> str:
        """Spell an integer."""
        return self.speller.int(value, tight)

    def spell_cond(self, value: Cond) -> str:
        """Spell a condition."""
        return self.speller.cond(value)

    def spell_wide(self, value: Int) -> str:
        """Spell an integer that a variable of 64 bits takes."""
        return self.spell(value)

    def _quotient(self, left: str, right: str, node: FloorDiv) -> str:
        inverse = self._inverse(node)
        if inverse is None:
            return C_SPELLER.floordiv(left, right, node)
        return f"quotient({self.spell(node.left)}, {inverse})"

    def _remainder(self, left: str, right: str, node: Mod) -> str:
        inverse = self._inverse(node)
        if inverse is None:
            return C_SPELLER.mod(left, right, node)
        return f"remainder({self.spell(node.left)}, {self.spell(node.right)}, {inverse})"

    def _inverse(self, node: FloorDiv | Mod) -> str | None:
        """The name of the divisor's inverse, if the launcher passes it and the dividend has 32 bits."""
        sym = self.inverses.get(node.right)
        if sym is None or bounds(node.left)[0] < 0 or self.int_type(node.left) != "int":
            return None
        return self.name(sym)

    def int_type(self, *values: Int) -> str:
        """``int``, or ``long long`` if one of the integers involves one of 64 bits."""
        return "long long" if any(self.wide & symbols(value) for value in values) else "int"

    def defined_type(self, sym: Sym, *values: Int) -> str:
        """The type of an integer that is defined by others, noted if it has 64 bits."""
        if (kind := self.int_type(*values)) != "int":
            self.wide.add(sym)
        return kind

    def temporary(self, name: str, low: int, high: int | None, divisor: int = 1) -> Sym:
        """A fresh integer symbol for a variable that the rule declares itself."""
        return Sym(self.names.unique(name), low, high, divisor)


C_RULES = RuleTable("c")
"""Rules shared by the C family."""


@C_RULES.rule(For)
def _for(emitter: Emitter, op: For) -> None:
    index = emitter.name(op.index)
    if op.unroll:
        emitter.line(emitter.dialect.unroll)
    step = f"++{index}" if op.step == 1 else f"{index} += {op.step}"
    start, stop = emitter.spell(op.start), emitter.spell(op.stop)
    kind = emitter.defined_type(op.index, op.start, op.stop)
    with emitter.indented(f"for ({kind} {index} = {start}; {index} < {stop}; {step})"):
        emitter.block(op.body)


@C_RULES.rule(If)
def _if(emitter: Emitter, op: If) -> None:
    with emitter.indented(f"if ({emitter.spell_cond(op.condition)})"):
        emitter.block(op.then)
    if op.otherwise.ops:
        with emitter.indented("else"):
            emitter.block(op.otherwise)


@C_RULES.rule(Variable)
def _variable(emitter: Emitter, op: Variable) -> None:
    emitter.line(f"long long {emitter.name(op.result)} = {emitter.spell_wide(op.initial)};")


@C_RULES.rule(SetVariable)
def _set_variable(emitter: Emitter, op: SetVariable) -> None:
    emitter.line(f"{emitter.name(op.variable)} = {emitter.spell_wide(op.value)};")


@C_RULES.rule(Let)
def _let(emitter: Emitter, op: Let) -> None:
    kind = emitter.defined_type(op.result, op.value)
    emitter.line(f"const {kind} {emitter.name(op.result)} = {emitter.spell(op.value)};")


@C_RULES.rule(GetVariable)
def _get_variable(emitter: Emitter, op: GetVariable) -> None:
    emitter.line(f"const long long {emitter.name(op.result)} = {emitter.name(op.variable)};")


@C_RULES.rule(ReadIndex)
def _read_index(emitter: Emitter, op: ReadIndex) -> None:
    view = op.source.tensor.view
    value = f"{emitter.name(op.source.buffer)}[{emitter.spell(view.offset)}]"
    if view.valid != TRUE:
        value = f"{emitter.spell_cond(view.valid)} ? {value} : 0"
    emitter.line(f"const {emitter.defined_type(op.result, op.result)} {emitter.name(op.result)} = {value};")


@C_RULES.rule(Reshape, Gather, Partition)
def _no_text(emitter: Emitter, op: Reshape | Gather | Partition) -> None:
    """A view has no text of its own; whoever uses it spells its offsets."""
