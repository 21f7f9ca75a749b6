"""Reductions into memory in CUDA text: ``red`` at the scope of the device, the block or the cluster.

``red.add.f32`` of global memory flushes subnormal numbers to zero.  Minima and maxima of floats use
compare-and-swap: a NaN replaces any number, and a NaN in memory stays.

Source: PTX ISA, "Parallel Synchronization and Communication Instructions: red".
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.targets.dialect import AtomicFunction

_REGISTERS = {
    "f64": ("double", "d", "x"),
    "f32": ("float", "f", "x"),
    "f16": ("half_t", "h", "x.bits"),
    "bf16": ("bf16_t", "h", "x.bits"),
    "i64": ("long long", "l", "x"),
    "i32": ("int", "r", "x"),
    "u64": ("unsigned long long", "l", "x"),
    "u32": ("unsigned", "r", "x"),
}
"""The type of an element, its register constraint, and the expression of its bits."""

_FORMS = {
    "add": {
        "f64": "add.f64",
        "f32": "add.f32",
        "f16": "add.noftz.f16",
        "bf16": "add.noftz.bf16",
        "i64": "add.u64",
        "u64": "add.u64",
        "i32": "add.u32",
        "u32": "add.u32",
    },
    "min": {"i64": "min.s64", "u64": "min.u64", "i32": "min.s32", "u32": "min.u32"},
    "max": {"i64": "max.s64", "u64": "max.u64", "i32": "max.s32", "u32": "max.u32"},
    "and": {"i64": "and.b64", "u64": "and.b64", "i32": "and.b32", "u32": "and.b32"},
    "or": {"i64": "or.b64", "u64": "or.b64", "i32": "or.b32", "u32": "or.b32"},
}

_SINCE = {("add", "bf16"): "sm_90"}
"""The features that reductions of one element need."""

_VECTORS = {
    ("f32", 2): ("add.v2.f32", 1, "sm_90"),
    ("f32", 4): ("add.v4.f32", 1, "sm_90"),
    ("f16", 2): ("add.noftz.f16x2", 2, ""),
    ("f16", 4): ("add.noftz.v2.f16x2", 2, "sm_90"),
    ("f16", 8): ("add.noftz.v4.f16x2", 2, "sm_90"),
    ("bf16", 2): ("add.noftz.bf16x2", 2, "sm_90"),
    ("bf16", 4): ("add.noftz.v2.bf16x2", 2, "sm_90"),
    ("bf16", 8): ("add.noftz.v4.bf16x2", 2, "sm_90"),
}
"""Sums of several elements at once: the form, the elements of each register, the needed feature."""

_ADDRESS = "(unsigned long long)__cvta_generic_to_global(to)"

_PLACES = {
    "global": ("", "gpu.global", f'"l"({_ADDRESS})'),
    "shared": ("_shared", "cta.shared", '"r"((unsigned)__cvta_generic_to_shared(to))'),
    "cluster": ("_cluster", "cluster", '"l"(to)'),
}
"""For each memory, the suffix of its functions, the scope with the state space, and the address.

An address in another block's shared memory is generic.
"""


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


def _extreme(kind: str, dtype: str, memory: str) -> str:
    """Return the minimum or maximum of floats by compare-and-swap; NaN stays."""
    element, bits = _REGISTERS[dtype][0], dtype[1:]
    word, to_bits, of_bits, letter = {
        "f32": ("unsigned", "__float_as_uint(x)", "__uint_as_float(seen)", "r"),
        "f64": ("unsigned long long", "__double_as_longlong(x)", "__longlong_as_double(seen)", "l"),
    }[dtype]
    sign = {"min": "<", "max": ">"}[kind]
    suffix, scope, address = _PLACES[memory]
    return f"""
DEVICE void reduce_{kind}_{dtype}{suffix}({element}* to, {element} x) {{
  {word} seen, before;
  asm volatile("ld.relaxed.{scope}.u{bits} %0, [%1];"
               : "={letter}"(seen) : {address} : "memory");
  do {{
    if (!(x {sign} {of_bits}) && x == x) return;
    before = seen;
    asm volatile("atom.relaxed.{scope}.cas.b{bits} %0, [%1], %2, %3;"
                 : "={letter}"(seen)
                 : {address}, "{letter}"(before), "{letter}"(({word}){to_bits}) : "memory");
  }} while (seen != before);
}}"""


def _functions() -> Iterator[tuple[str, str, AtomicFunction, str]]:
    """Yield the kind and element type of each reduction, its function, and the function's text."""
    for memory, (suffix, scope, address) in _PLACES.items():
        least = "sm_90" if memory == "cluster" else ""
        for kind, forms in _FORMS.items():
            for dtype, form in forms.items():
                feature = least or _SINCE.get((kind, dtype), "")
                one = AtomicFunction(f"reduce_{kind}_{dtype}{suffix}", 1, feature, memory)
                element, letter, bits = _REGISTERS[dtype]
                text = f"""
DEVICE void {one.function}({element}* to, {element} x) {{
  asm volatile("red.relaxed.{scope}.{form} [%0], %1;"
               ::{address}, "{letter}"({bits}) : "memory");
}}"""
                yield kind, dtype, one, text
        for kind in ("min", "max"):
            for dtype in ("f32", "f64"):
                one = AtomicFunction(f"reduce_{kind}_{dtype}{suffix}", 1, least, memory)
                yield kind, dtype, one, _extreme(kind, dtype, memory)
    for (dtype, width), (form, packed, feature) in _VECTORS.items():
        one = AtomicFunction(f"reduce_add_{dtype}x{width}", width, feature)
        yield "add", dtype, one, _several(dtype, width, form, packed)


_COUNTER = '"l"((unsigned long long)__cvta_generic_to_global(counter))'

_SCOPES = {"": "gpu", "_system": "sys"}
"""For each suffix of the functions of counters, PTX's scope."""

_COUNTERS = {
    name: text
    for suffix, scope in _SCOPES.items()
    for name, text in {
        f"signal_counter{suffix}": f"""
DEVICE void signal_counter{suffix}(unsigned* counter, unsigned value) {{
  asm volatile("red.release.{scope}.global.add.u32 [%0], %1;"
               ::{_COUNTER}, "r"(value) : "memory");
}}""",
        f"signal_counter_of{suffix}": f"""
DEVICE void signal_counter_of{suffix}(unsigned* counter, unsigned of) {{
  asm volatile("red.release.{scope}.global.inc.u32 [%0], %1;"
               ::{_COUNTER}, "r"(of - 1) : "memory");
}}""",
        f"await_counter{suffix}": f"""
DEVICE void await_counter{suffix}(const unsigned* counter, unsigned value) {{
  for (unsigned sleep = 8;; sleep = sleep < 256 ? 2 * sleep : sleep) {{
    unsigned seen;
    asm volatile("ld.acquire.{scope}.global.u32 %0, [%1];"
                 : "=r"(seen) : {_COUNTER} : "memory");
    if (seen >= value) return;
    asm volatile("nanosleep.u32 %0;" ::"r"(sleep));
  }}
}}""",
    }.items()
} | {
    "take_ticket": f"""
DEVICE int take_ticket(unsigned* counter) {{
  int old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(old) : {_COUNTER} : "memory");
  return old;
}}""",
    "take_ticket_of": f"""
DEVICE int take_ticket_of(unsigned* counter, unsigned of) {{
  int old;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(old) : {_COUNTER}, "r"(of - 1) : "memory");
  return old;
}}""",
    "reset_counter": f"""
DEVICE void reset_counter(unsigned* counter) {{
  asm volatile("st.relaxed.gpu.global.u32 [%0], 0;"
               ::{_COUNTER} : "memory");
}}""",
}

PIECES: dict[str, str] = {}
"""Functions of reductions and of counters, by name."""

ATOMICS: dict[tuple[str, str], tuple[AtomicFunction, ...]] = {}
"""The functions for each kind of reduction and element type."""

for _kind, _dtype, _function, _text in _functions():
    PIECES[_function.function] = _text
    ATOMICS[_kind, _dtype] = (*ATOMICS.get((_kind, _dtype), ()), _function)
PIECES |= _COUNTERS
