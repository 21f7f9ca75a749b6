"""What all targets that emit C share: an emitter, the spelling of integers, and the rules of control flow.

A target adds a rule table whose parent is `C_RULES` and a `Dialect`; its rules write lines to an `Emitter`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.ir.builder import Names
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, For, GetVariable, If, Partition, Reshape, SetVariable, Variable
from tilewright.layout.nodes import Cond, FloorDiv, Int, Mod, Sym
from tilewright.layout.ranges import bounds
from tilewright.layout.spelling import Speller
from tilewright.layout.walk import symbols
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


@dataclass(frozen=True)
class Dialect:
    """How one member of the C family spells things.

    Args:
        types: the name of each dtype's storage type.
        function: qualifiers of a helper function in the prelude.
        unroll: the line before a loop that is to be unrolled.
    """

    types: dict[str, str]
    function: str = "static inline"
    unroll: str = "#pragma unroll"

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
        self.wide = {p.sym for p in kernel.sizes if p.bits == 64}
        self._depth = 1

    def line(self, text: str = "") -> None:
        """Add a line at the present indentation."""
        self.lines.append("  " * self._depth + text if text else "")

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
        return C_SPELLER.int(value, tight)

    def spell_cond(self, value: Cond) -> str:
        """Spell a condition."""
        return C_SPELLER.cond(value)

    def int_type(self, value: Int) -> str:
        """``int``, or ``long long`` if the integer involves a 64-bit size."""
        return "long long" if self.wide & symbols(value) else "int"

    def temporary(self, name: str, low: int, high: int | None, divisor: int = 1) -> Sym:
        """A fresh integer symbol for a variable that the rule declares itself."""
        return Sym(self.names.unique(name), low, high, divisor)


C_RULES = RuleTable("c")
"""Rules shared by the C family."""


@C_RULES.rule(For)
def _for(emitter: Emitter, op: For) -> None:
    index = op.index.name
    if op.unroll:
        emitter.line(emitter.dialect.unroll)
    step = f"++{index}" if op.step == 1 else f"{index} += {op.step}"
    with emitter.indented(
        f"for (int {index} = {emitter.spell(op.start)}; {index} < {emitter.spell(op.stop)}; {step})"
    ):
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
    emitter.line(f"int {op.result.name} = {emitter.spell(op.initial)};")


@C_RULES.rule(SetVariable)
def _set_variable(emitter: Emitter, op: SetVariable) -> None:
    emitter.line(f"{op.variable.name} = {emitter.spell(op.value)};")


@C_RULES.rule(GetVariable)
def _get_variable(emitter: Emitter, op: GetVariable) -> None:
    emitter.line(f"const int {op.result.name} = {op.variable.name};")


@C_RULES.rule(Reshape, Partition)
def _no_text(emitter: Emitter, op: Reshape | Partition) -> None:
    """A view has no text of its own; whoever uses it spells its offsets."""
