"""Conversions between dtypes as C expressions over the prelude's functions.  Each rounds once.

Narrow floats are opaque storage types.  They widen to ``float`` exactly and are rounded from ``float``.  A
conversion from f64, or from integers that f32 cannot hold, goes through a float rounded to odd, so that the
second rounding sees no tie.
"""

from __future__ import annotations

import struct

from tilewright.dtypes import FP8, PACKED, DType, boolean, encoding, f32, f64, i8, i32, limits
from tilewright.errors import DTypeError
from tilewright.ir.packed_ops import AsBytes, Pack, Unpack
from tilewright.symbolic.expr import add, mul
from tilewright.symbolic.nodes import Int, Sym
from tilewright.targets.dialect import called_in_names
from tilewright.targets.simt.emitter import SIMT_RULES, LocalNames, SimtEmitter, element
from tilewright.targets.statements import Code, call, code, joined, named
from tilewright.threads.registers import indexed

# ----------------------------------------------------------------
#
# Functions of 8-bit floats, derived from their encoding.


def spelled(kind: DType) -> str:
    """Return the name of a float of at most 8 bits in functions and types of the text.

    Example:
        >>> from tilewright.dtypes import f8e4m3fnuz
        >>> spelled(f8e4m3fnuz)
        'e4m3fnuz'
    """
    return kind.name.removeprefix(f"f{kind.bits}")


def widening(kind: DType) -> str:
    """Return the exact conversion to ``float``: shifted bits are a number whose exponent is too small."""
    name, form = spelled(kind), encoding(kind)
    if form.has_one_zero:
        is_special, special = "x.bits == 0x80", "NOT_A_NUMBER"
    elif form.has_infinity:  # NaN keeps its fraction, with the largest exponent
        is_special = f"(x.bits & 0x7f) >= 0x{form.top:x}"
        special = "FLOAT_OF(scaled | 0x7f800000)"
    else:
        is_special, special = f"(x.bits & 0x7f) == 0x{form.nan:x}", "NOT_A_NUMBER"
    return f"""
DEVICE float {name}_to_float({name}_t x) {{
  // The exponent of the f32 with these bits is {127 - form.bias} too small.
  const unsigned scaled = (unsigned)(x.bits & 0x80) << 24 | (unsigned)(x.bits & 0x7f) << {23 - form.fraction};
  const float y = FLOAT_OF(scaled) * FLOAT_OF({254 - form.bias}u << 23);
  return {is_special} ? {special} : y;
}}"""


def narrowing(kind: DType) -> str:
    """Return the conversion from ``float``, to nearest even; overflow gives infinity, or NaN."""
    name, form = spelled(kind), encoding(kind)
    down, least = 23 - form.fraction, 1 - form.bias - form.fraction
    half, normal = (1 << down - 1) - 1, _word(2.0 ** (1 - form.bias))
    sign = "y ? sign | y : 0" if form.has_one_zero else "sign | y"
    largest = form.top - form.has_infinity
    end = 2.0 ** ((largest >> form.fraction) - form.bias) * (
        1 + (largest % (1 << form.fraction) + 0.5) / (1 << form.fraction)
    )
    beyond = f"{'>' if largest % 2 == 0 else '>='} 0x{_word(end):x}"
    if form.has_one_zero:
        special = f"""\
  if (y {beyond}) {{  // {end:g} and beyond, infinities, NaN
    return {name}_t{{0x80}};"""
    elif not form.has_infinity:
        special = f"""\
  if (y {beyond}) {{  // beyond {end:g}, the last number that rounds to the largest one
    y = 0x{form.nan:x};"""
    else:
        special = f"""\
  if (y > 0x7f800000) {{
    y = 0x{form.nan:x};  // NaN
  }} else if (y {beyond}) {{
    y = 0x{form.top:x};  // {end:g} and beyond round to infinity"""
    return f"""
DEVICE {name}_t float_to_{name}(float x) {{
  const unsigned sign = BITS_OF(x) >> 24 & 0x80;
  unsigned y = BITS_OF(x) & 0x7fffffff;
{special}
  }} else if (y < 0x{normal:x}) {{  // subnormal: the sum leaves multiples of 2**{least} in the last bits
    y = BITS_OF(FLOAT_OF(y) + {2.0 ** (least + 23)}f) - BITS_OF({2.0 ** (least + 23)}f);
  }} else {{
    y = (y + 0x{half:x} + (y >> {down} & 1) - ({127 - form.bias}u << 23)) >> {down};
  }}
  return {name}_t{{(unsigned char)({sign})}};
}}"""


def _word(value: float) -> int:
    """Return the bits of an f32."""
    return int.from_bytes(struct.pack("<f", value), "little")


PIECES = {
    **{f"{spelled(kind)}_to_float": widening(kind) for kind in FP8},
    **{f"float_to_{spelled(kind)}": narrowing(kind) for kind in FP8},
}
"""Functions that convert between 8-bit floats and ``float``, by name."""


# ---------------------------------------------------------------- expressions


NARROW = {
    "f16": "half",
    "bf16": "bf16",
    **{made.name: spelled(made) for made in (*FP8, *PACKED) if made.is_float},
}
"""Storage-only floats, with their names in the prelude's functions."""


def widened(text: Code, dtype: DType) -> Code:
    """Return the expression, exactly, in its compute dtype.  A packed number is given by its bits."""
    if dtype.is_packed and not dtype.is_float:
        return call(f"{dtype}_to_int", text)
    return call(f"{NARROW[dtype.name]}_to_float", text) if dtype.name in NARROW else text


def converted(text: Code, source: DType, target: DType, types: dict[str, str]) -> Code:
    """Return the expression, rounded or truncated to another dtype.

    Args:
        text: an expression of the source dtype's storage type.
        source: its dtype.
        target: the dtype to convert to.
        types: the C type of each dtype.

    Raises:
        DTypeError: conversions of complex numbers.
    """
    if source == target:
        return text
    if source.components > 1 or target.components > 1:
        raise DTypeError(f"no conversion from {source} to {target} in generated text")
    if source == boolean:
        return converted(call("truth", text), i8, target, types)
    wide, kind = widened(text, source), source.computed
    if target == boolean:
        return code("({} != 0)", wide)
    if target.name in NARROW:
        return _narrowed(wide, kind, target)
    if target.is_float:
        return wide if kind == target else cast(types[target.name], wide)
    if kind.is_float:
        return _integer(wide, kind, target)
    return cast(types[target.name], wide)


def cast(kind: str, text: Code) -> Code:
    """``(kind)text``."""
    simple = text.replace("_", "").replace("[", "").replace("]", "").isalnum() or text.endswith(")")
    return code("({}){}" if simple else "({})({})", named(kind), text)


def _narrowed(wide: Code, kind: DType, target: DType) -> Code:
    name = NARROW[target.name]
    if kind == f64 and target.name == "f16":
        return call("double_to_half", wide)
    if kind.bits == 64 and not kind.is_float and target.name != "f16":
        wide = call(f"{called_in_names(kind)}_to_float_odd", wide)
    elif kind == f64 or (kind == i32 and target.name != "f16") or kind.name == "u32":
        wide = call("double_to_float_odd", wide)
    elif kind != f32:
        wide = cast("float", wide)
    return call(f"float_to_{name}", wide)


def _integer(wide: Code, kind: DType, target: DType) -> Code:
    """Return the expression, truncated and saturated; NaN gives 0."""
    prefix = "double" if kind == f64 else "float"
    if target.bits >= 32:
        return call(f"{prefix}_to_{called_in_names(target)}", wide)
    low, high = (Code(str(end)) for end in limits(target))
    return call("min", call("max", call(f"{prefix}_to_int", wide), low), high)


# ----------------------------------------------------------------
#
# Packing and unpacking: bytes that hold several numbers, the first in the lowest bits.


@SIMT_RULES.rule(AsBytes)
def as_bytes(emitter: SimtEmitter, op: AsBytes) -> None:
    """Write nothing: each access writes its own address."""


def _registers(scope: LocalNames, op: Unpack | Pack, bytes_: int) -> tuple[Sym, list[Int]]:
    """Return the loop over the bytes of a thread, and the register index of each of a byte's numbers."""
    i = Sym(scope.name("i"), 0, bytes_ - 1)
    each = op.packed.per_byte
    return i, [add(mul(i, each), part) for part in range(each)]


@SIMT_RULES.rule(Unpack)
def unpack(emitter: SimtEmitter, op: Unpack) -> None:
    """Write the numbers of each byte to their registers, which are mostly consecutive."""
    kind, bits, digits = op.packed, op.packed.bits, op.digits
    source, target = emitter.name(op.source), emitter.name(op.target)
    text = f"{op.source} -> {op.target}, {kind.per_byte} numbers of {kind} in each byte"
    with emitter.scope(op, text) as scope:
        i, numbers = _registers(scope, op, op.source.fragment.distribution.size_values)
        with emitter.loops((i,)):
            byte = element(source, i)
            for part, number in enumerate(numbers):
                found = (
                    code("{} >> {}", byte, bits * part) if part else code("{} & {}", byte, (1 << bits) - 1)
                )
                made = converted(found, kind, op.target.dtype, emitter.dialect.types)
                emitter.assign(code("{}[{}]", target, emitter.spell(indexed(digits, number))), made)


@SIMT_RULES.rule(Pack)
def pack(emitter: SimtEmitter, op: Pack) -> None:
    """Pack the numbers of consecutive registers into bytes."""
    kind, bits = op.packed, op.packed.bits
    source, target = emitter.name(op.source), emitter.name(op.target)
    text = f"{op.source} -> {op.target}, {kind.per_byte} numbers of {kind} in each byte"
    with emitter.scope(op, text) as scope:
        i, numbers = _registers(scope, op, op.target.fragment.distribution.size_values)
        with emitter.loops((i,)):
            parts = []
            for part, number in enumerate(numbers):
                given = code("{}[{}]", source, emitter.spell(number))
                made = converted(given, op.source.dtype, kind, emitter.dialect.types)
                low = code("({} & {})", made, (1 << bits) - 1)
                parts.append(code("{} << {}", low, bits * part) if part else low)
            emitter.assign(element(target, i), joined(" | ", parts))
