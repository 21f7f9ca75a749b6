"""Spelling of types, integers and names in the C family, and the record of one dialect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from tilewright.dtypes import ALL, DType, encoding


@dataclass(frozen=True)
class AtomicFunction:
    """A function of the prelude that reduces into memory in one step: ``function(address, value)``.

    Args:
        function: its name; if ``width`` is above 1, it takes the address of the values.
        width: elements of one call.
        feature: the feature that the architecture must have; empty for none.
        memory: ``"global"``, ``"shared"``, or ``"cluster"``: shared memory of any block of the cluster.
    """

    function: str
    width: int = 1
    feature: str = ""
    memory: str = "global"


@dataclass(frozen=True)
class Dialect:
    """Spelling of one member of the C family.

    Args:
        types: the name of each dtype's storage type.
        function: qualifiers of a helper function in the prelude.
        unroll: the line before a loop that is unrolled.
        copied: the line before a loop that is unrolled by a factor, the format's argument.
        bits: the bit cast, called with a type and a value.
        reserved: names that the generated text uses itself, in addition to C++'s keywords.
        atomics: functions for each kind of reduction and element type.
    """

    types: dict[str, str]
    function: str = "static inline"
    unroll: str = "#pragma unroll"
    copied: str = "#pragma unroll {}"
    bits: str = "__builtin_bit_cast"
    reserved: frozenset[str] = frozenset()
    atomics: Mapping[tuple[str, str], tuple[AtomicFunction, ...]] = field(default_factory=dict)

    def unrolled(self, copies: bool | int) -> str:
        """Return the line before a loop that is unrolled by a factor, or fully (True)."""
        if copies is True or not copies:
            return self.unroll if copies else ""
        return self.copied.format(copies) if copies > 1 else ""

    def type(self, dtype: DType) -> str:
        """Return the storage type of a dtype."""
        return self.types[dtype.name]


# ---------------------------------------------------------------- integer types and constants in C


_SIGNED = {8: "signed char", 16: "short", 32: "int", 64: "long long"}
_UNSIGNED = {8: "unsigned char", 16: "unsigned short", 32: "unsigned", 64: "unsigned long long"}

INTEGERS = tuple(made for made in ALL.values() if made.kind in ("int", "uint") and not made.is_packed)
"""Every integer dtype that is also a type of C."""


def integer_type(dtype: DType) -> str:
    """Return the C type of an integer dtype.

    Example:
        >>> from tilewright.dtypes import i8, u32
        >>> integer_type(i8), integer_type(u32)
        ('signed char', 'unsigned')
    """
    return (_UNSIGNED if dtype.kind == "uint" else _SIGNED)[dtype.bits]


def unsigned_type(dtype: DType) -> str:
    """Return the unsigned type with the same number of bits."""
    return _UNSIGNED[dtype.bits]


def suffix(dtype: DType) -> str:
    """Return the suffix of a constant of an integer dtype; narrow ones are constants of ``int``.

    Example:
        >>> from tilewright.dtypes import i64, u16, u32
        >>> suffix(i64), suffix(u16), suffix(u32)
        ('ll', '', 'u')
    """
    return "u" * (dtype.kind == "uint" and dtype.bits >= 32) + "ll" * (dtype.bits == 64)


INTEGER_TYPES: dict[str, str] = {made.name: integer_type(made) for made in INTEGERS}
"""The type of each integer dtype, by its name."""


def called_in_names(dtype: DType) -> str:
    """Return the part of a function's name that stands for an integer dtype of at least 32 bits.

    Example:
        >>> from tilewright.dtypes import i32, i64, u32
        >>> called_in_names(i32), called_in_names(u32), called_in_names(i64)
        ('int', 'uint', 'll')
    """
    return "u" * (dtype.kind == "uint") + ("int" if dtype.bits == 32 else "ll")


def shifts(left: str, right: str, qualifiers: str) -> dict[str, str]:
    """Return C++ functions that shift an integer; a count outside of its bits shifts all bits out.

    Args:
        left: name of the shift to the left.
        right: name of the shift to the right, which keeps the sign.
        qualifiers: qualifiers of a function.
    """
    ends = {
        left: "(T)((unsigned long long)a << count) : (T)0",
        right: "(T)(a >> count) : (T)(a < 0 ? -1 : 0)",
    }
    return {
        name: f"""\
template <class T>
{qualifiers} T {name}(T a, T count) {{
  // A count outside of the bits shifts all of them out.
  const bool inside = count >= 0 && count < (T)(8 * sizeof(T));
  return inside ? {end};
}}"""
        for name, end in ends.items()
    }


# ---------------------------------------------------------------- numbers narrower than a byte


def integer_of_bits(kind: DType) -> str:
    """Return the ``int`` of a packed integer, as an expression of its ``bits``.

    Example:
        >>> from tilewright.dtypes import ALL
        >>> integer_of_bits(ALL["i4"])
        '(int)(bits << 28) >> 28'
    """
    rest = 32 - kind.bits
    return f"(int)(bits << {rest}) >> {rest}" if kind.kind == "int" else f"(int)(bits << {rest} >> {rest})"


def float_of_bits(kind: DType, float_of: str) -> tuple[str, str]:
    """Return the f32 of a packed float, as an expression of its ``bits``, and a comment.

    Args:
        kind: the packed float.
        float_of: start of a call that reinterprets an ``unsigned`` as a ``float``.
    """
    form = encoding(kind)
    shift, up = 32 - kind.bits, 23 - form.fraction
    return (
        (
            f"{float_of}(bits & {form.sign}) << {shift} | (bits & {form.sign - 1}) << {up})"
            f" * {float_of}{254 - form.bias}u << 23)"
        ),
        f"// The exponent of the f32 with these bits is {127 - form.bias} too small.",
    )


def bits_of_float(kind: DType, bits_of: str) -> tuple[str, str]:
    """Return the statements that return the bits of the packed float nearest to ``x``, and a comment.

    Args:
        kind: the packed float.
        bits_of: start of a call that reinterprets a ``float`` as an ``unsigned``.
    """
    sign = encoding(kind).sign
    numbers = np.arange(sign, dtype=np.uint8).view(kind.numbers).astype(float)
    middles = ((low + high) / 2 for low, high in pairwise(numbers))
    passed = [f"!(y {'<' if at % 2 else '<='} {float(middle)!r}f)" for at, middle in enumerate(middles)]
    rest = "\n      + ".join([" + ".join(passed[at : at + 5]) for at in range(0, len(passed), 5)])
    return (
        f"""\
  const float y = x < 0 ? -x : x;
  const unsigned size = {rest};
  return size | (x == x ? {bits_of}x) >> {32 - kind.bits} & {sign} : 0);""",
        (
            "// One more for each middle between two numbers that is passed; ties go to the even one, NaN to "
            f"{numbers[-1]:g}."
        ),
    )


# ----------------------------------------------------------------
#
# Names that variables of generated C cannot have.


_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const
consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do
double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable
namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template
this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t
while xor xor_eq main NULL
"""
KEYWORDS = frozenset(_KEYWORDS.split())
"""Words of C++ that cannot be names of variables."""


def not_reserved(name: str) -> str:
    """Return a name without leading underscores that C++ reserves, as in ``__syncthreads``."""
    bare = name.lstrip("_")
    is_reserved = bare[:1].isalpha() and (name.startswith("__") or (bare != name and bare[0].isupper()))
    return bare if is_reserved else name
