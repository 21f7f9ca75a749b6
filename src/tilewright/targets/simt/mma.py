"""Matrix multiplies of fragments: the loops over atoms, and the atom that every target executes."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.ir.ops import Mma
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Int, Sym
from tilewright.targets.simt.conversion import widened
from tilewright.targets.simt.emitter import SIMT_RULES, Scope, SimtEmitter, element
from tilewright.targets.statements import Assign, Code, Do, Statement, call, code


@dataclass(frozen=True)
class AtomLoops:
    """The loops over the atoms of a tiled MMA, and the first register of each atom's operands.

    Args:
        loops: those with more than one turn, outermost first.
        a: first register of A.
        b: first register of B.
        c: first register of the accumulator.
    """

    loops: tuple[Sym, ...]
    a: Int
    b: Int
    c: Int


def atom_loops(scope: Scope, op: Mma) -> AtomLoops:
    """The loops over K, N and M, in this order."""
    repeats_m, repeats_n = op.mma.repeats
    atom = op.mma.atom
    steps = op.a.fragment.shape[1] // atom.shape[2]
    step, j, i = (index(scope, name, n) for name, n in (("step", steps), ("j", repeats_n), ("i", repeats_m)))
    return AtomLoops(
        tuple(loop for loop in (step, j, i) if isinstance(loop, Sym)),
        (step * repeats_m + i) * atom.a.size_values,
        (step * repeats_n + j) * atom.b.size_values,
        (j * repeats_m + i) * atom.c.size_values,
    )


def index(scope: Scope, name: str, count: int) -> Int:
    """The index of a loop of ``count`` turns: 0 if there is only one."""
    return Sym(scope.name(name), 0, count - 1) if count > 1 else 0


@SIMT_RULES.rule(Mma)
def mma(emitter: SimtEmitter, op: Mma) -> None:
    """The atom's instruction; multiply-adds if the dialect has none."""
    atom = op.mma.atom
    instruction = emitter.dialect.instruction(atom)
    if instruction is None:
        multiply_add(emitter, op)
        return
    guard = emitter.participants(op.mma.c())
    precision = atom.precision if atom.rounding == "nearest" else None  # others round by themselves
    whole = precision is None
    with emitter.scope(op, f"{op.c} += {op.a} * {op.b}, by {atom}", guard, bare=whole) as scope:
        a, b = (_operand(scope, operand, precision) for operand in (op.a, op.b))
        atoms = atom_loops(scope, op)
        names = ((emitter.name(op.c), atoms.c), (a, atoms.a), (b, atoms.b))
        registers = (code("&{}[{}]", name, emitter.spell(at)) for name, at in names)
        emitter.one_line(atoms.loops, Do(call(emitter.defined(instruction), *registers)))


def _operand(scope: Scope, operand: Value, precision: int | None) -> Code:
    """The operand's registers; declared anew, rounded, if the atom reads fewer fraction bits."""
    emitter = scope.emitter
    name = emitter.name(operand)
    if precision is None:
        return name
    rounded = scope.name(f"{name}_rounded")
    count = operand.fragment.distribution.size_values
    i = Sym(scope.name("i"), 0, count - 1)
    emitter.declare_array(operand.dtype, rounded, count)
    made = call(emitter.dialect.rounding[precision], element(name, i))
    emitter.one_line((i,), Assign(element(rounded, i), made))
    return rounded


def multiply_add(emitter: SimtEmitter, op: Mma) -> None:
    """``c[x, y] += a[x] * b[y]`` for every atom; products are exact, f32 and f64 sums are rounded once.

    Narrow floats are widened where they are multiplied: the loops are unrolled, so that a compiler widens
    each number once, and chooses when.
    """
    guard = emitter.participants(op.mma.c())
    with emitter.scope(op, f"{op.c} += {op.a} * {op.b}", guard, bare=True) as scope:
        atom = op.mma.atom
        rows, columns = atom.a.size_values, atom.b.size_values
        atoms = atom_loops(scope, op)
        x, y = index(scope, "x", rows), index(scope, "y", columns)
        left, right, total = (
            code("{}[{}]", emitter.name(value), emitter.spell(at))
            for value, at in (
                (op.a, atoms.a + x),
                (op.b, atoms.b + y),
                (op.c, atoms.c + x * columns + y),
            )
        )
        left, right = widened(left, op.a.dtype), widened(right, op.b.dtype)
        inner = tuple(loop for loop in (x, y) if isinstance(loop, Sym))
        emitter.one_line((*atoms.loops, *inner), _sum(total, left, right, atom.c_dtype))


def _sum(total: Code, left: Code, right: Code, dtype: DType) -> Statement:
    if not dtype.is_float:
        return Assign(total, code("{} * {}", left, right), "+=")
    return Assign(total, call("fma" if dtype.bits == 64 else "fmaf", left, right, total))
