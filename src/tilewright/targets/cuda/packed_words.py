"""Packed integers of 4 bits, which become halves eight at a time: those of a word.

Two numbers are put into the low bits of two halves.  A logical operation sets the bits of a float there whose
last bit counts as 1, and turns the sign's bit around, so that 8 more than the number stands behind an offset
that is then taken away.  Each step is exact.

Numbers that lie 4 apart in memory are 16 bits apart in the word, as two halves are: they need no more than
the logical operation.  Neighbours come from bytes of the word and of the word shifted by 4 bits, side by
side, which takes another operation for each pair.

Source: PTX ISA, "prmt", "lop3".
"""

from __future__ import annotations

import numpy as np

from tilewright.ir.packed_ops import Unpack
from tilewright.symbolic.nodes import Sym
from tilewright.targets.cuda.spelling import CUDA_RULES
from tilewright.targets.simt.emitter import SimtEmitter
from tilewright.targets.simt.packed import unpack
from tilewright.targets.statements import Do, call, code
from tilewright.threads.registers import indexed, registers_of

WORD_BYTES = 4

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

PIECES = {
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
"""By the names that they define."""

NEEDS = {
    "i4x8_to_half": ("half_t", "sub_f16x2"),
    "i4x8_to_bf16": ("bf16_t", "fma_bf16x2"),
    "i4x8_apart_to_half": ("half_t", "sub_f16x2", "fma_f16x2"),
    "i4x8_apart_to_bf16": ("bf16_t", "fma_bf16x2"),
}
"""What each of them names."""

STEMS = {"f16": "half", "bf16": "bf16"}
"""How functions call the dtype of the numbers."""


@CUDA_RULES.rule(Unpack)
def unpack_words(emitter: SimtEmitter, op: Unpack) -> None:
    """Registers get the numbers of bytes; eight at a time where they come in words, in one of two orders."""
    stem, count = STEMS.get(op.target.dtype.name), op.source.fragment.distribution.size_values
    if stem is None or op.packed.name != "i4" or count % WORD_BYTES or (found := _order(op)) is None:
        unpack(emitter, op)
        return
    emitter.comment(op, f"{op.source} -> {op.target}, 8 numbers of i4 in each word")
    i = Sym(emitter.local("i"), 0, count // WORD_BYTES - 1)
    each = op.packed.per_byte * WORD_BYTES
    source = code("&{}[{}]", emitter.name(op.source), emitter.spell(WORD_BYTES * i))
    target = code("&{}[{}]", emitter.name(op.target), emitter.spell(indexed(op.digits, each * i)))
    name, near, far = found
    made = call(f"{name}_to_{stem}", target, code("{}", near), code("{}", far), source)
    emitter.one_line((i,), Do(made))


def _order(op: Unpack) -> tuple[str, int, int] | None:
    """How a word's numbers lie in pairs of registers, and how far it is to the next pair and the third."""
    size = op.packed.per_byte * WORD_BYTES
    places = registers_of(op.digits, op.target.fragment.distribution.size_values).reshape(-1, size)
    for name, apart in (("i4x8", 1), ("i4x8_apart", size // 2)):
        first = [at for at in range(size) if not at // apart % 2]
        pairs = places[:, [[at, at + apart] for at in first]] - places[:, :1, None]
        near, far = (int(pairs[0, at, 0]) for at in (1, 2))
        wanted = np.array([0, near, far, near + far])[:, None] + np.arange(2)
        if (pairs == wanted).all():
            return name, near, far
    return None
