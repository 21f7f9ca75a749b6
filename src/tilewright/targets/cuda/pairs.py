"""Rules and functions for two or eight narrow numbers at once: conversions, zero points and scales.

Eight i4 of a word become pairs of f16.  Two numbers go into the low bits of two f16.  A logical operation
sets the exponent at which the last bit has the value 1, and flips the sign bit, so that the f16 is an offset
plus 8 plus the number; a subtraction removes both.  Each step is exact.

Numbers that are 4 apart in memory are 16 bits apart in the word, as two f16 are: they need only the logical
operation.  Neighbours come from bytes of the word and of the word shifted by 4 bits, which takes one more
operation per pair.

Source: PTX ISA, "cvt", "prmt", "lop3".
"""

from __future__ import annotations

import zlib

import numpy as np

from tilewright.functions.conversions import number
from tilewright.ir.ops import Elementwise
from tilewright.ir.packed_ops import Unpack
from tilewright.ir.types import FragmentType, Value
from tilewright.symbolic.nodes import Sym
from tilewright.targets.cuda.spelling import CUDA_RULES
from tilewright.targets.simt.arithmetic import elementwise
from tilewright.targets.simt.conversion import unpack
from tilewright.targets.simt.dialect import PairFunction, TextFunction
from tilewright.targets.simt.emitter import SimtEmitter
from tilewright.targets.statements import Do, call, code
from tilewright.threads.registers import broadcast, indexed, registers_of

WORD_BYTES = 4

ARITHMETIC = {
    ("sub", "f16"): PairFunction("pair_sub_half", "sm_80"),
    ("mul", "f16"): PairFunction("pair_mul_half", "sm_80"),
    ("sub", "bf16"): PairFunction("pair_sub_bf16", "sm_80"),
    ("mul", "bf16"): PairFunction("pair_mul_bf16", "sm_80"),
}
"""Functions of two neighbours and a number that both share, by elementwise function and dtype.

They round once.  The result equals that of f32 arithmetic, which has more than twice as many bits, rounded.
"""


@CUDA_RULES.rule(Elementwise)
def elementwise_in_pairs(emitter: SimtEmitter, op: Elementwise) -> None:
    """Write a function of every element; two at a time if two neighbours share the second operand."""
    if not _in_pairs(emitter, op):
        elementwise(emitter, op)


def _in_pairs(emitter: SimtEmitter, op: Elementwise) -> bool:
    """Emit one instruction for each two elements; return False if no instruction takes the operands."""
    kind, operands = op.result.type, op.operands_
    if not isinstance(kind, FragmentType) or len(operands) != 2:
        return False
    pair, (first, second) = ARITHMETIC.get((op.function, kind.dtype.name)), operands
    if pair is None or pair.feature not in emitter.arch.features:
        return False
    if not all(isinstance(one, Value) and one.is_fragment and one.dtype == kind.dtype for one in operands):
        return False
    assert isinstance(first, Value), "a fragment"
    assert isinstance(second, Value), "a fragment"
    spread = kind.distribution
    digits = broadcast(spread, second.fragment.distribution)
    if first.fragment.distribution != spread or spread.size_values % 2 or digits is None:
        return False
    shared = registers_of(digits, spread.size_values).reshape(-1, 2)
    if (shared[:, 0] != shared[:, 1]).any():
        return False
    emitter.comment(op, f"{op.result.name} = {op.function}({first}, {second}), two at a time")
    i = Sym(emitter.local("i"), 0, spread.size_values // 2 - 1)
    emitter.declare_registers(op.result)
    to, given = (code("&{}[{}]", emitter.name(one), emitter.spell(2 * i)) for one in (op.result, first))
    number = code("{}[{}]", emitter.name(second), emitter.spell(indexed(digits, 2 * i)))
    emitter.one_line((i,), Do(call(pair.function, to, given, number)))
    return True


STEMS = {"f16": "half", "bf16": "bf16"}
"""Names of dtypes in function names."""


@CUDA_RULES.rule(Unpack)
def unpack_words(emitter: SimtEmitter, op: Unpack) -> None:
    """Write the numbers of bytes to registers; eight at a time if they are words in one of two orders."""
    if (found := word_function(op)) is None:
        unpack(emitter, op)
        return
    count = op.source.fragment.distribution.size_values
    emitter.comment(op, f"{op.source} -> {op.target}, 8 numbers of {op.packed} in each word")
    i = Sym(emitter.local("i"), 0, count // WORD_BYTES - 1)
    each = op.packed.per_byte * WORD_BYTES
    source = code("&{}[{}]", emitter.name(op.source), emitter.spell(WORD_BYTES * i))
    target = code("&{}[{}]", emitter.name(op.target), emitter.spell(indexed(op.digits, each * i)))
    name, near, far = found
    function = emitter.defined(_looked_up(op)) if op.table else name
    emitter.one_line((i,), Do(call(function, target, code("{}", near), code("{}", far), source)))


def word_function(op: Unpack) -> tuple[str, int, int] | None:
    """Return the function that unpacks a word of 8 numbers, and the offsets of the second and third pair.

    None if no function has the dtypes and the order of the numbers.
    """
    stem, count = STEMS.get(op.target.dtype.name), op.source.fragment.distribution.size_values
    if stem is None or op.packed.bits != 4 or count % WORD_BYTES:
        return None
    if not op.table and op.packed.name != "i4":
        return None
    size = op.packed.per_byte * WORD_BYTES
    places = registers_of(op.digits, op.target.fragment.distribution.size_values).reshape(-1, size)
    for name, apart in (("i4x8", 1), *([] if op.table else [("i4x8_apart", size // 2)])):
        first = [at for at in range(size) if not at // apart % 2]
        pairs = places[:, [[at, at + apart] for at in first]] - places[:, :1, None]
        near, far = (int(pairs[0, at, 0]) for at in (1, 2))
        wanted = np.array([0, near, far, near + far])[:, None] + np.arange(2)
        if (pairs == wanted).all():
            return f"{name}_to_{stem}", near, far
    return None


def _looked_up(op: Unpack) -> TextFunction:
    """Return the function that looks up the 8 codes of a word in a table of 16 halves.

    The table is held as 16 low bytes and 16 high bytes, in four words each.  For 4 codes at once, ``prmt``
    picks a byte from each half of the table by three bits of a code, then one of the two by the fourth bit.
    """
    held = [number(entry, op.target.dtype) for entry in op.table]
    bits = np.array(held, op.target.dtype.numpy).view(np.uint16)
    low, high = ([int(word) for word in part.astype(np.uint8).view(np.uint32)] for part in (bits, bits >> 8))
    stem = STEMS[op.target.dtype.name]

    def chosen(words: list[int]) -> str:
        first, second, third, fourth = (f"{word:#x}" for word in words)
        return f"__byte_perm(__byte_perm({first}, {second}, at), __byte_perm({third}, {fourth}, at), upper)"

    text = f"""({stem}_t* to, int near, int far, const unsigned char* from) {{
  const unsigned word = *(const unsigned*)from;
  #pragma unroll
  for (int i = 0; i < 2; ++i) {{
    const unsigned codes = word >> 16*i, at = codes & 0x7777u, upper = codes >> 1 & 0x4444u | 0x3210u;
    const unsigned low = {chosen(low)};
    const unsigned high = {chosen(high)};
    *(unsigned*)(to + i*far) = __byte_perm(low, high, 0x5140);
    *(unsigned*)(to + i*far + near) = __byte_perm(low, high, 0x7362);
  }}
}}"""
    made = f"taken_{stem}_{zlib.crc32(text.encode()):08x}"
    return TextFunction(made, f"DEVICE void {made}{text}")


# ----------------------------------------------------------------
#
# Functions that convert two narrow numbers to halves at once.
#
# Each conversion is exact.  fp8 has an instruction from sm_89 on.  An 8-bit integer becomes the low bits of
# a float whose last bit counts as 1; a subtraction then removes the offset.


PAIRS = {
    ("f8e4m3", "f16"): PairFunction("e4m3_pair_to_half", "sm_89"),
    ("f8e5m2", "f16"): PairFunction("e5m2_pair_to_half", "sm_89"),
    ("f8e4m3", "bf16"): PairFunction("e4m3_pair_to_bf16", "sm_89"),
    ("f8e5m2", "bf16"): PairFunction("e5m2_pair_to_bf16", "sm_89"),
    ("i8", "f16"): PairFunction("i8_pair_to_half", "sm_80"),
    ("i8", "bf16"): PairFunction("i8_pair_to_bf16", "sm_80"),
}
"""Conversions by source and target dtype."""

_INPUTS = {
    "e4m3": "const unsigned short x = *(const unsigned short*)from;",
    "e5m2": "const unsigned short x = *(const unsigned short*)from;",
    "i8": "const unsigned x = *(const unsigned short*)from ^ 0x8080;",
}
"""The bits of two numbers; the sign bit of an integer is flipped, which adds 128 to the number."""

_OUTPUTS = "  *(unsigned*)to = y;"

_TO_HALVES = {
    "e4m3": '  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(y) : "h"(x));',
    "e5m2": '  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(y) : "h"(x));',
    "i8": """  // The f16 of the bits 0x6400 + b is 1024 + b.
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(__byte_perm(x, 0x64646464, 0x4140)), "r"(0x64806480));""",
}

_FROM_HALVES = """  unsigned short low = halves, high = halves >> 16;
  float first, second;
  asm("cvt.f32.f16 %0, %1;" : "=f"(first) : "h"(low));
  asm("cvt.f32.f16 %0, %1;" : "=f"(second) : "h"(high));"""

_TO_FLOATS = {
    "e4m3": f"""  unsigned halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(x));
{_FROM_HALVES}""",
    "e5m2": f"""  unsigned halves;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(halves) : "h"(x));
{_FROM_HALVES}""",
    "i8": """  // The f32 of the bits 0x4b000000 + b is 2**23 + b.
  const float first = __uint_as_float(__byte_perm(x, 0x4b000000, 0x7650)) - 8388736.0f;
  const float second = __uint_as_float(__byte_perm(x, 0x4b000000, 0x7651)) - 8388736.0f;""",
}

_TO_BF16 = '  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));'

_STORAGE = {"e4m3": "e4m3_t", "e5m2": "e5m2_t", "i8": "signed char"}


def _piece(name: str, target: str, steps: str) -> str:
    lines = (
        f"DEVICE void {name}({target}_t* to, const {_STORAGE[name.partition('_')[0]]}* from) {{",
        f"  {_INPUTS[name.partition('_')[0]]}",
        "  unsigned y;",
        steps,
        _OUTPUTS,
        "}",
    )
    return "\n".join(lines)


INSTRUCTIONS = {
    "sub_f16x2": """DEVICE unsigned sub_f16x2(unsigned x, unsigned z) {
  unsigned y;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(z));
  return y;
}""",
    "mul_f16x2": """DEVICE unsigned mul_f16x2(unsigned x, unsigned z) {
  unsigned y;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(z));
  return y;
}""",
    "fma_f16x2": """DEVICE unsigned fma_f16x2(unsigned x, unsigned z, unsigned sum) {
  unsigned y;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(z), "r"(sum));
  return y;
}""",
    "fma_bf16x2": """DEVICE unsigned fma_bf16x2(unsigned x, unsigned z, unsigned sum) {
  unsigned y;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(z), "r"(sum));
  return y;
}""",
}
"""Instructions for two halves in a register, each by its bits."""

_ARITHMETIC = {
    ("sub", "half"): "sub_f16x2(x, z)",
    ("mul", "half"): "mul_f16x2(x, z)",
    ("sub", "bf16"): "fma_bf16x2(z, 0xbf80bf80, x)",
    ("mul", "bf16"): "fma_bf16x2(x, z, 0x80008000)",
}
"""Functions of two pairs; products of bf16 add -0, so that zeros keep their sign."""


_NEIGHBOURS = """DEVICE void i4x8_to_{name}({name}_t* to, int near, int far, const unsigned char* from) {{
  const unsigned low = *(const unsigned*)from, high = low >> 4;
  #pragma unroll
  for (int i = 0; i < 4; ++i) {{
    const unsigned x = __byte_perm(low, high, 0x4400 + 0x1111*i) & 0x000f000fu ^ {bits}u;
{steps}
  }}
}}"""

_APART = """DEVICE void i4x8_apart_to_{name}({name}_t* to, int near, int far, const unsigned char* from) {{
  const unsigned word = *(const unsigned*)from;
  #pragma unroll
  for (int i = 0; i < 4; ++i) {{
{steps}
  }}
}}"""

_WORDS = {
    "i4x8_to_half": _NEIGHBOURS.format(
        name="half",
        bits="0x64086408",
        steps="""    // The f16 of the bits 0x6400 + b is 1024 + b.
    *(unsigned*)(to + i%2*near + i/2*far) = sub_f16x2(x, 0x64086408);""",
    ),
    "i4x8_to_bf16": _NEIGHBOURS.format(
        name="bf16",
        bits="0x43084308",
        steps="""    // The bf16 of the bits 0x4300 + b is 128 + b.
    *(unsigned*)(to + i%2*near + i/2*far) = fma_bf16x2(x, 0x3f803f80, 0xc308c308);""",
    ),
    "i4x8_apart_to_half": _APART.format(
        name="half",
        steps="""    // The f16 of the bits 0x6400 + b is 1024 + b, and 4 bits further on 1024 + 16*b.
    const unsigned x = word >> i/2*8;
    unsigned* y = (unsigned*)(to + i%2*near + i/2*far);
    if (i % 2 == 0) *y = sub_f16x2(x & 0x000f000fu ^ 0x64086408u, 0x64086408);
    else *y = fma_f16x2(x & 0x00f000f0u ^ 0x64806480u, 0x2c002c00, 0xd480d480);""",
    ),
    "i4x8_apart_to_bf16": _APART.format(
        name="bf16",
        steps="""    // The bf16 of the bits 0x4300 + b is 128 + b.
    const unsigned x = word >> 4*i & 0x000f000fu ^ 0x43084308u;
    *(unsigned*)(to + i%2*near + i/2*far) = fma_bf16x2(x, 0x3f803f80, 0xc308c308);""",
    ),
}
"""Conversions of the eight i4 of a word, by name."""

PIECES = {
    **INSTRUCTIONS,
    **{
        f"pair_{function}_{kind}": f"""\
DEVICE void pair_{function}_{kind}({kind}_t* to, const {kind}_t* from, const {kind}_t other) {{
  const unsigned x = *(const unsigned*)from, z = other.bits | other.bits << 16;
  *(unsigned*)to = {made};
}}"""
        for (function, kind), made in _ARITHMETIC.items()
    },
    **{
        name: _piece(name, "half", steps)
        for source, steps in _TO_HALVES.items()
        for name in [f"{source}_pair_to_half"]
    },
    **{
        name: _piece(name, "bf16", f"{steps}\n{_TO_BF16}")
        for source, steps in _TO_FLOATS.items()
        for name in [f"{source}_pair_to_bf16"]
    },
    **_WORDS,
}
"""The text of each function."""
