"""CUDA functions that execute MMA atoms, derived from the atom's record.

`SPELLED` has one entry for each kind of instruction.  `tilewright.targets.atoms` has the dtypes, shapes and
features of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.dtypes import DType
from tilewright.ir.mma import MmaAtom
from tilewright.targets.simt.dialect import TextFunction

PTX_TYPES = {
    **{name: name for name in ("f64", "f32", "f16", "bf16")},
    "f8e4m3": "e4m3",
    "f8e5m2": "e5m2",
    "i8": "s8",
    "u8": "u8",
    "i32": "s32",
}
"""PTX names of the dtypes of atoms."""

TF32_BITS = 10
"""Fraction bits of tf32."""


@dataclass(frozen=True)
class AsyncForm:
    """Sources and signs of an asynchronous atom's operands in one multiply.

    Args:
        from_registers: whether A comes from registers.
        along: the operands that are contiguous along M or N, letters of ``"mn"``; others along K.
        chooses: whether an argument decides if products are added to the sums, or replace them.
        negative: whether products are subtracted.
    """

    from_registers: bool = False
    along: str = ""
    chooses: bool = False
    negative: bool = False


Spelling: TypeAlias = Callable[[MmaAtom, AsyncForm], TextFunction]


def ptx_type(dtype: DType, precision: int | None = None) -> str:
    """Return PTX's name of an operand type; ``precision`` is the number of multiplied fraction bits."""
    return "tf32" if precision == TF32_BITS else PTX_TYPES[dtype.name]


def function(atom: MmaAtom, form: AsyncForm | None = None) -> TextFunction | None:
    """Return the function that executes an atom; None if the atom has no instruction.

    Example:
        >>> from tilewright.targets.atoms import MMA_TF32, wgmma
        >>> function(MMA_TF32).name, function(wgmma("bf16", 64), AsyncForm(along="n")).name
        ('mma_m16n8k8_tf32', 'wgmma_m64n64k16_bf16_n')
    """
    spell = SPELLED.get(atom.instruction)
    return None if spell is None else spell(atom, form or AsyncForm())


def _shape(atom: MmaAtom) -> str:
    m, n, k = atom.shape
    return f"m{m}n{n}k{k}"


def _types(atom: MmaAtom) -> tuple[str, str, str]:
    """Return PTX's types of A, B and C."""
    a, b = (ptx_type(dtype, atom.precision) for dtype in (atom.a_dtype, atom.b_dtype))
    return a, b, ptx_type(atom.c_dtype)


def _name(prefix: str, atom: MmaAtom) -> str:
    """Return a name that is unique among atoms of a kind: it also tells 16-bit from 32-bit sums."""
    a, b, c = _types(atom)
    words = [prefix, _shape(atom), a, *([b] if b != a else []), *([c] if atom.c_dtype.bits == 16 else [])]
    return "_".join(words)


@dataclass(frozen=True)
class _Registers:
    """The registers of an operand of ``asm``.

    Args:
        kind: the C type of a register.
        constraint: its constraint letter.
        count: the number of registers.
    """

    kind: str
    constraint: str
    count: int

    @staticmethod
    def of(dtype: DType, values: int) -> _Registers:
        """Return registers of 64 bits for f64, floats for f32, and words for all other dtypes."""
        if dtype.bits == 64:
            return _Registers("double", "d", values)
        if dtype.is_float and dtype.bits == 32:
            return _Registers("float", "f", values)
        return _Registers("int" if dtype.bits == 32 else "unsigned", "r", values * dtype.bytes // 4)

    def operand(self, name: str, updated: bool = False) -> list[str]:
        sign = "+" if updated else ""
        return [f'"{sign}{self.constraint}"({name}[{i}])' for i in range(self.count)]


def _mma_sync(atom: MmaAtom, form: AsyncForm) -> TextFunction:
    """Return the function of a ``mma.sync``.

    Source: PTX ISA, "Multiply-and-accumulate instruction: mma".
    """
    name = _name("mma", atom)
    a_type, b_type, c_type = _types(atom)
    c = _Registers.of(atom.c_dtype, atom.c.size_values)
    a, b = (
        _Registers.of(dtype, spread.size_values)
        if dtype.bits == 64
        else _Registers("unsigned", "r", spread.size_values * dtype.bytes // 4)
        for dtype, spread in ((atom.a_dtype, atom.a), (atom.b_dtype, atom.b))
    )
    packed = atom.c_dtype.bits == 16  # two in a register
    stored = "half_t" if packed else c.kind
    sums = "sums" if packed else "c"
    cast = f"\n  {c.kind}* sums = ({c.kind}*)c;" if packed else ""
    first_b = c.count + a.count
    operands = [f"%{i}" for i in range(first_b + b.count)]
    groups = (operands[: c.count], operands[c.count : first_b], operands[first_b:], operands[: c.count])
    listed = ", ".join("{" + ", ".join(group) + "}" for group in groups)
    return TextFunction(
        name,
        f"""
DEVICE void {name}({stored}* c, const void* a, const void* b) {{{cast}
  const {a.kind}* x = (const {a.kind}*)a;
  const {b.kind}* y = (const {b.kind}*)b;
  asm volatile("mma.sync.aligned.{_shape(atom)}.row.col.{c_type}.{a_type}.{b_type}.{c_type} "
               "{listed};"
               : {", ".join(c.operand(sums, updated=True))}
               : {", ".join(a.operand("x"))},
                 {", ".join(b.operand("y"))});
}}""",
    )


def _wgmma(atom: MmaAtom, form: AsyncForm) -> TextFunction:
    """Return the function of a ``wgmma.mma_async``: B by descriptor, A by descriptor or from registers.

    Source: PTX ISA, "Asynchronous multiply-and-accumulate instruction: wgmma.mma_async".
    """
    name = _name("wgmma", atom) + ("_registers" if form.from_registers else "")
    name += f"_{form.along}" if form.along else ""
    name += ("_negative" if form.negative else "") + ("_or_fresh" if form.chooses else "")
    a_type, b_type, c_type = _types(atom)
    c = _Registers.of(atom.c_dtype, atom.c.size_values)
    sums = c.operand("d", updated=True)
    outputs = ",\n".join("        " + ", ".join(sums[at : at + 8]) for at in range(0, c.count, 8))
    names = ", ".join(f"%{i}" for i in range(c.count))
    if form.from_registers:
        count = atom.a.size_values * atom.a_dtype.bytes // 4
        kind, a_text = "const void*", "{" + ", ".join(f"%{c.count + i}" for i in range(count)) + "}"
        inputs = ", ".join(f'"r"(((const unsigned*)a)[{i}])' for i in range(count))
    else:
        count, kind, a_text, inputs = 1, "descriptor_t", f"%{c.count}", '"l"(a)'
    # Products are added to the sums, unless an argument decides; floating-point operands may be negated.
    choice = ("", "1", "", "", "")
    if form.chooses:
        set_it = rf'"{{\n.reg .pred adds;\nsetp.ne.b32 adds, %{c.count + count + 1}, 0;\n"' + "\n      "
        choice = (", int adds", "adds", set_it, "\\n}", ', "r"(adds)')
    argument, adds, before, after, given = choice
    scales = [adds, *(["-1" if form.negative else "1", "1"] if atom.c_dtype.is_float else [])]
    if "mn" in atom.majors:
        scales += [str(int(letter in form.along)) for letter in ("n" if form.from_registers else "mn")]
    return TextFunction(
        name,
        f"""
DEVICE void {name}({c.kind}* d, {kind} a, descriptor_t b{argument}) {{
  asm volatile({before}"wgmma.mma_async.sync.aligned.{_shape(atom)}.{c_type}.{a_type}.{b_type} "
      "{{{names}}}, "
      "{a_text}, %{c.count + count}, {", ".join(scales)};{after}"
      : {outputs.strip()}
      : {inputs}, "l"(b){given});
}}""",
    )


SPELLED: Mapping[str, Spelling] = {"mma.sync": _mma_sync, "wgmma": _wgmma}
"""The writer of each kind of instruction; multiply-adds need no function."""
