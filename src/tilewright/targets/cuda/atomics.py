"""Reductions into global memory in CUDA text: ``red``, at the scope of the device.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: red".  ``red.add.f32`` of global
memory flushes subnormal numbers to zero.  Minima and maxima of floats are those of integers in the order of
the floats' bits; NaN is the greatest for a maximum, and the least for a minimum.
"""

from __future__ import annotations

from tilewright.targets.cfamily import Atomic

_REGISTERS = {
    "f64": ("double", "d", "x"),
    "f32": ("float", "f", "x"),
    "f16": ("half_t", "h", "x.bits"),
    "i64": ("long long", "l", "x"),
    "i32": ("int", "r", "x"),
    "u32": ("unsigned", "r", "x"),
}
"""The type of an element, the letter of its registers, and how its bits are named."""

_FORMS = {
    "add": {
        "f64": "add.f64",
        "f32": "add.f32",
        "f16": "add.noftz.f16",
        "i64": "add.u64",
        "i32": "add.u32",
        "u32": "add.u32",
    },
    "min": {"i64": "min.s64", "i32": "min.s32", "u32": "min.u32"},
    "max": {"i64": "max.s64", "i32": "max.s32", "u32": "max.u32"},
    "and": {"i64": "and.b64", "i32": "and.b32", "u32": "and.b32"},
    "or": {"i64": "or.b64", "i32": "or.b32", "u32": "or.b32"},
}

_VECTORS = {
    ("f32", 2): ("add.v2.f32", 1, "sm_90"),
    ("f32", 4): ("add.v4.f32", 1, "sm_90"),
    ("f16", 2): ("add.noftz.f16x2", 2, ""),
    ("f16", 4): ("add.noftz.v2.f16x2", 2, "sm_90"),
    ("f16", 8): ("add.noftz.v4.f16x2", 2, "sm_90"),
}
"""Sums of several elements at once: the form, the elements of each register, the feature that it needs."""

_ADDRESS = "(unsigned long long)__cvta_generic_to_global(to)"


def _one(kind: str, dtype: str, form: str) -> str:
    element, letter, bits = _REGISTERS[dtype]
    return f"""
DEVICE void reduce_{kind}_{dtype}({element}* to, {element} x) {{
  asm volatile("red.relaxed.gpu.global.{form} [%0], %1;"
               ::"l"({_ADDRESS}), "{letter}"({bits}) : "memory");
}}"""


def _several(dtype: str, width: int, form: str, packed: int) -> str:
    element, letter, bits = _REGISTERS[dtype]
    inputs = ", ".join(f'"{letter}"({bits.replace("x", f"x[{i}]", 1)})' for i in range(width))
    names = [f"%{i + 1}" for i in range(width)]
    declared, moves = "", ""
    if packed > 1:
        pairs = [names[i : i + packed] for i in range(0, width, packed)]
        names = [f"p{i}" for i in range(len(pairs))]
        declared = f".reg .b32 {', '.join(names)}; "
        moves = "".join(
            f"mov.b32 {name}, {{{', '.join(pair)}}}; " for name, pair in zip(names, pairs, strict=True)
        )
    value = f"{{{', '.join(names)}}}" if len(names) > 1 else names[0]
    return f"""
DEVICE void reduce_add_{dtype}x{width}({element}* to, const {element}* x) {{
  asm volatile("{{{declared}{moves}"
               "red.relaxed.gpu.global.{form} [%0], {value};}}"
               ::"l"({_ADDRESS}),
                 {inputs} : "memory");
}}"""


def _ordered(kind: str, dtype: str) -> str:
    """Extremes of floats: positive numbers are in the order of signed integers, negative in the opposite."""
    element, bits = _REGISTERS[dtype][0], dtype[1:]
    signed, to_bits, letter = {
        "f32": ("int", "__float_as_int", "r"),
        "f64": ("long long", "__double_as_longlong", "l"),
    }[dtype]
    # NaN with its sign bit set is the least of all, without it the greatest.
    nan = {"f32": {"min": "0xffc00000", "max": "0x7fc00000"}}.get(
        dtype, {"min": "0xfff8000000000000", "max": "0x7ff8000000000000"}
    )[kind]
    opposite = {"min": "max", "max": "min"}[kind]
    return f"""
DEVICE void reduce_{kind}_{dtype}({element}* to, {element} x) {{
  const {signed} ordered = x == x ? {to_bits}(x) : ({signed}){nan};
  if (ordered >= 0) {{
    asm volatile("red.relaxed.gpu.global.{kind}.s{bits} [%0], %1;"
                 ::"l"({_ADDRESS}), "{letter}"(ordered) : "memory");
  }} else {{
    asm volatile("red.relaxed.gpu.global.{opposite}.u{bits} [%0], %1;"
                 ::"l"({_ADDRESS}), "{letter}"(ordered) : "memory");
  }}
}}"""


PIECES: dict[str, str] = {
    **{
        f"reduce_{kind}_{dtype}": _one(kind, dtype, form)
        for kind, forms in _FORMS.items()
        for dtype, form in forms.items()
    },
    **{
        f"reduce_{kind}_{dtype}": _ordered(kind, dtype) for kind in ("min", "max") for dtype in ("f32", "f64")
    },
    **{
        f"reduce_add_{dtype}x{width}": _several(dtype, width, form, packed)
        for (dtype, width), (form, packed, _) in _VECTORS.items()
    },
}
"""The functions that the text may call."""

NEEDS = {name: (_REGISTERS[name.split("_")[2].partition("x")[0]][0],) for name in PIECES}
"""The type that each of them names."""


def _known() -> dict[tuple[str, str], tuple[Atomic, ...]]:
    found: dict[tuple[str, str], tuple[Atomic, ...]] = {}
    for name in PIECES:
        _, kind, element = name.split("_")
        dtype, _, width = element.partition("x")
        feature = _VECTORS[dtype, int(width)][2] if width else ""
        found[kind, dtype] = (*found.get((kind, dtype), ()), Atomic(name, int(width or 1), feature))
    return found


ATOMICS = _known()
"""The functions for each kind of reduction and element type."""
