"""Packed integers of 4 bits, which become halves eight at a time: those of a word.

Bytes of the word and of the word shifted by 4 bits lie side by side, so that each pair of neighbours is in
the low bits of two halves.  A logical operation puts the bits of a float there whose last bit counts as 1,
and turns the sign's bit around, so that 8 more than the number stands behind an offset that is then taken
away.  Each step is exact.

Source: PTX ISA, "prmt", "lop3".
"""

from __future__ import annotations

from tilewright.ir.packed_ops import Unpack
from tilewright.symbolic.nodes import Sym
from tilewright.targets.cuda.spelling import CUDA_RULES
from tilewright.targets.simt.emitter import SimtEmitter
from tilewright.targets.simt.packed import unpack
from tilewright.targets.statements import Do, call, code

WORD_BYTES = 4

_STEPS = """DEVICE void i4x8_to_{name}({name}_t* to, const unsigned char* from) {{
  const unsigned low = *(const unsigned*)from, high = low >> 4;
  unsigned* y = (unsigned*)to;
  #pragma unroll
  for (int i = 0; i < 4; ++i) {{
    const unsigned x = __byte_perm(low, high, 0x4400 + 0x1111*i) & 0x000f000fu ^ {bits}u;
{steps}
  }}
}}"""

PIECES = {
    "i4x8_to_half": _STEPS.format(
        name="half",
        bits="0x64086408",
        steps="""    // The f16 of the bits 0x6400 + b is 1024 + b.
    y[i] = sub_f16x2(x, 0x64086408);""",
    ),
    "i4x8_to_bf16": _STEPS.format(
        name="bf16",
        bits="0x43084308",
        steps="""    // The bf16 of the bits 0x4300 + b is 128 + b.
    y[i] = fma_bf16x2(x, 0x3f803f80, 0xc308c308);""",
    ),
}
"""By the names that they define."""

NEEDS = {"i4x8_to_half": ("half_t", "sub_f16x2"), "i4x8_to_bf16": ("bf16_t", "fma_bf16x2")}
"""What each of them names."""

FUNCTIONS = {"f16": "i4x8_to_half", "bf16": "i4x8_to_bf16"}
"""By the dtype of the numbers."""


@CUDA_RULES.rule(Unpack)
def unpack_words(emitter: SimtEmitter, op: Unpack) -> None:
    """Consecutive registers get the numbers of one byte; eight at a time where they come in words."""
    function, count = FUNCTIONS.get(op.target.dtype.name), op.source.fragment.distribution.size_values
    if function is None or op.packed.name != "i4" or count % WORD_BYTES:
        unpack(emitter, op)
        return
    emitter.comment(op, f"{op.source} -> {op.target}, 8 numbers of i4 in each word")
    i = Sym(emitter.local("i"), 0, count // WORD_BYTES - 1)
    each = op.packed.per_byte * WORD_BYTES
    source = code("&{}[{}]", emitter.name(op.source), emitter.spell(WORD_BYTES * i))
    target = code("&{}[{}]", emitter.name(op.target), emitter.spell(each * i))
    emitter.one_line((i,), Do(call(function, target, source)))
