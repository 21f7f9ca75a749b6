"""HIP functions that execute MMA atoms, and loads straight into shared memory.

An atom consists of one or several builtins of clang.

Source: clang, ``BuiltinsAMDGPU.def``, for the builtins and their types; AMD's ISA documents of CDNA 2, 3 and
4, section "Global", ``GLOBAL_LOAD_LDS``; LLVM, "User Guide for AMDGPU Backend".
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.mma import MmaAtom
from tilewright.targets.matrix_cores import MFMA, WMMA
from tilewright.targets.simt.dialect import TextFunction


@dataclass(frozen=True)
class Builtin:
    """A compiler builtin that executes an atom or a part of its depth.

    Args:
        name: its name without ``__builtin_amdgcn_``.
        element: the C type of an element of A and of B.
        count: elements of A and of B per lane.
        form: its arguments, with the registers ``{a}``, ``{b}`` and ``{c}``.
        since: the macro of the architecture that has it, if others execute the atom in several steps; else
            empty.
    """

    name: str
    element: str
    count: int
    form: str
    since: str = ""


_MFMA_FORM, _WMMA_FORM = "{a}, {b}, {c}, 0, 0, 0", "{a}, {b}, {c}"


def _mfma(name: str, element: str, count: int = 1, since: str = "") -> Builtin:
    return Builtin(f"mfma_{name}", element, count, _MFMA_FORM, since)


def _wmma(name: str, element: str, count: int, form: str = _WMMA_FORM) -> Builtin:
    return Builtin(f"wmma_{name}", element, count, form)


def _integers(name: str, count: int, *, signed: bool) -> Builtin:
    """Return a WMMA of 8-bit integers, which states the signedness of A and B; sums wrap."""
    sign = "true" if signed else "false"
    return _wmma(f"i32_16x16x16_iu8_w32{name}", "int", count, f"{sign}, {{a}}, {sign}, {{b}}, {{c}}, false")


_STEPS = {
    ("f16", 32): (8, _mfma("f32_32x32x8f16", "_Float16", 4)),
    ("f16", 16): (16, _mfma("f32_16x16x16f16", "_Float16", 4)),
    ("bf16", 32): (8, _mfma("f32_32x32x8bf16_1k", "short", 4)),
    ("bf16", 16): (16, _mfma("f32_16x16x16bf16_1k", "short", 4)),
    ("f32", 32): (2, _mfma("f32_32x32x2f32", "float")),
    ("f32", 16): (4, _mfma("f32_16x16x4f32", "float")),
    ("f64", 16): (4, _mfma("f64_16x16x4f64", "double")),
    ("i8", 32): (16, _mfma("i32_32x32x16_i8", "long")),
    ("i8", 16): (32, _mfma("i32_16x16x32_i8", "long")),
    ("f8e4m3", 32): (16, _mfma("f32_32x32x16_fp8_fp8", "long")),
    ("f8e4m3", 16): (32, _mfma("f32_16x16x32_fp8_fp8", "long")),
    ("f8e5m2", 32): (16, _mfma("f32_32x32x16_bf8_bf8", "long")),
    ("f8e5m2", 16): (32, _mfma("f32_16x16x32_bf8_bf8", "long")),
}
_STEPS |= {(f"{kind}fnuz", side): _STEPS[kind, side] for kind in ("f8e4m3", "f8e5m2") for side in (32, 16)}
"""Depth and builtin of every architecture, by dtype of A and rows."""

_OF_GFX90A = {32: _mfma("i32_32x32x8i8", "int"), 16: _mfma("i32_16x16x16i8", "int")}
"""Integer builtins of gfx90a only, by rows."""

_AT_ONCE = {
    ("f16", 32, 16): _mfma("f32_32x32x16_f16", "_Float16", 8, "__gfx950__"),
    ("f16", 16, 32): _mfma("f32_16x16x32_f16", "_Float16", 8, "__gfx950__"),
    ("bf16", 32, 16): _mfma("f32_32x32x16_bf16", "__bf16", 8, "__gfx950__"),
    ("bf16", 16, 32): _mfma("f32_16x16x32_bf16", "__bf16", 8, "__gfx950__"),
    ("i8", 32, 32): _mfma("i32_32x32x32_i8", "int", 4, "__gfx950__"),
    ("i8", 16, 64): _mfma("i32_16x16x64_i8", "int", 4, "__gfx950__"),
}
"""Builtins of gfx950 for atoms that take two steps on other architectures."""

_OF_WMMA = {
    ("f16", "gfx11"): _wmma("f32_16x16x16_f16_w32", "_Float16", 16),
    ("bf16", "gfx11"): _wmma("f32_16x16x16_bf16_w32", "short", 16),
    ("i8", "gfx11"): _integers("", 4, signed=True),
    ("u8", "gfx11"): _integers("", 4, signed=False),
    ("f16", "gfx12"): _wmma("f32_16x16x16_f16_w32_gfx12", "_Float16", 8),
    ("bf16", "gfx12"): _wmma("f32_16x16x16_bf16_w32_gfx12", "short", 8),
    ("i8", "gfx12"): _integers("_gfx12", 2, signed=True),
    ("u8", "gfx12"): _integers("_gfx12", 2, signed=False),
    ("f8e4m3", "gfx12"): _wmma("f32_16x16x16_fp8_fp8_w32_gfx12", "int", 2),
    ("f8e5m2", "gfx12"): _wmma("f32_16x16x16_bf8_bf8_w32_gfx12", "int", 2),
}


def builtins(atom: MmaAtom) -> tuple[tuple[int, Builtin], ...]:
    """Return the builtins that execute an atom, with repeat counts; the most common builtin is last.

    Example:
        >>> from tilewright.targets.matrix_cores import MFMA_F16_K16
        >>> [(steps, one.name) for steps, one in builtins(MFMA_F16_K16)]
        [(1, 'mfma_f32_32x32x16_f16'), (2, 'mfma_f32_32x32x8f16')]
    """
    kind, (side, _, depth) = atom.a_dtype.name, atom.shape
    if atom.instruction == WMMA:
        return ((1, _OF_WMMA[kind, atom.feature]),)
    if atom.instruction != MFMA:
        return ()
    if atom.feature == "gfx90a":
        return ((1, _OF_GFX90A[side]),)
    each, step = _STEPS[kind, side]
    at_once = _AT_ONCE.get((kind, side, depth))
    return (*(((1, at_once),) if at_once else ()), (depth // each, step))


def function(atom: MmaAtom) -> TextFunction | None:
    """Return the function that executes an atom on the first registers of C, A and B, or None."""
    found = builtins(atom)
    if not found:
        return None
    m, n, k = atom.shape
    name = f"{atom.instruction}_{m}x{n}x{k}_{atom.a_dtype}"
    total = {"f32": "float", "f64": "double", "i32": "int"}[atom.c_dtype.name]
    # Fragments of narrow numbers are accessed by words of 4 bytes.
    align = 8 if "f64" in (atom.a_dtype.name, atom.c_dtype.name) else 4
    bodies = [_statements(steps, one, align) for steps, one in found]
    if len(bodies) > 1:
        first, other = bodies
        bodies = [f"#if defined({found[0][1].since})", first, "#else", other, "#endif"]
    body = "\n".join(bodies)
    return TextFunction(
        name,
        f"""
DEVICE void {name}({total}* c, const void* a, const void* b) {{
  typedef {total} sums_t __attribute__(({_vector(atom.c.size_values)}aligned({align})));
  sums_t sums = *(const sums_t*)c;
{body}
  *(sums_t*)c = sums;
}}""",
    )


def _statements(steps: int, one: Builtin, align: int) -> str:
    """Return the statements that add the products of an atom to ``sums``."""
    declared = (
        f"  typedef {one.element} operand_t __attribute__(({_vector(one.count)}may_alias, aligned({align})));"
    )
    at = "[i]" if steps > 1 else "[0]"
    given = one.form.format(a=f"((const operand_t*)a){at}", b=f"((const operand_t*)b){at}", c="sums")
    made = f"sums = __builtin_amdgcn_{one.name}(\n        {given});"
    if steps == 1:
        return f"{declared}\n  {made}"
    loop = f"  #pragma unroll\n  for (int i = 0; i < {steps}; ++i) {{\n    {made}\n  }}"
    return f"{declared}\n{loop}"


def _vector(count: int) -> str:
    return f"ext_vector_type({count}), " if count > 1 else ""


# ----------------------------------------------------------------
#
# Loads into shared memory, and the wait for them.


def _load(width: int, spelled: str) -> str:
    return f"""
DEVICE void load_to_shared_{width}(const void* from, unsigned to) {{
  // {width} bytes of each lane, in the order of lanes; only `loads_wait` waits for them.
  asm volatile(
      "s_mov_b32 m0, %1\\n\\t"
      "s_nop 0\\n\\t"
{spelled}
      :
      : "v"(from), "s"(to)
      : "memory", "m0");
}}"""


LOADS_TO_SHARED = {
    "zeros": """
// Loads read these instead of elements that do not exist.  Nothing writes them; they are not declared
// constant, because the compiler would then not know that an address is in global memory.
__attribute__((device, aligned(16))) static unsigned zeros[4] = {0, 0, 0, 0};""",
    "load_or_zeros": """
template <class Word>
DEVICE Word load_or_zeros(bool exists, const void* from) {
  return *(const Word*)(exists ? from : (const void*)zeros);
}""",
    "anew": """
DEVICE int anew(int x) {
  // Conditions on x are computed after this, instead of being kept from before.
  asm volatile("" : "+v"(x));
  return x;
}""",
    "shared_address": """
DEVICE unsigned shared_address(const void* shared) {
  return (unsigned)(unsigned long)(__attribute__((address_space(3))) const void*)shared;
}""",
    "of_first_lane": """
DEVICE unsigned of_first_lane(unsigned x) {
  return __builtin_amdgcn_readfirstlane(x);
}""",
    "load_to_shared_4": _load(
        4,
        """#if defined(__gfx90a__)
      "global_load_dword %0, off lds"
#else
      "global_load_lds_dword %0, off"
#endif""",
    ),
    "load_to_shared_16": _load(16, """      "global_load_lds_dwordx4 %0, off\""""),
    "loads_wait": """
template <int pending>
DEVICE void loads_wait() {
  asm volatile("s_waitcnt vmcnt(%0)" : : "n"(pending) : "memory");
}""",
}
"""Text of copies into shared memory.

It is assembly because the compiler's own builtin makes each barrier wait for all such loads.
"""
