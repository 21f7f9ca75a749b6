"""Reductions into memory and counters between blocks in HIP text, by clang's atomics with a scope.

Source: LLVM, "User Guide for AMDGPU Backend", "Memory Model"; clang, "Scoped Atomic Builtins".
"""

from __future__ import annotations

from tilewright.targets.c_integers import INTEGER_TYPES
from tilewright.targets.dialect import Atomic

_KINDS = {
    **{("add", dtype): "add" for dtype in ("f32", "f64", "i32", "u32", "i64", "u64")},
    **{(kind, dtype): kind for kind in ("min", "max", "and", "or") for dtype in ("i32", "u32", "i64", "u64")},
}
_SCOPES = {"global": "AGENT", "shared": "WORKGROUP"}
_COUNTED = "__ATOMIC_{}, __HIP_MEMORY_SCOPE_AGENT"


def _reduction(kind: str, dtype: str, memory: str) -> tuple[str, str]:
    name = f"reduce_{kind}_{dtype}_{memory}"
    element = {"f32": "float", "f64": "double"}.get(dtype) or INTEGER_TYPES[dtype]
    scope = f"__HIP_MEMORY_SCOPE_{_SCOPES[memory]}"
    return (
        name,
        f"""
DEVICE void {name}({element}* to, {element} x) {{
  __hip_atomic_fetch_{kind}(to, x, __ATOMIC_RELAXED, {scope});
}}""",
    )


PIECES = {
    **dict(_reduction(kind, dtype, memory) for kind, dtype in _KINDS for memory in _SCOPES),
    "signal_counter": f"""
DEVICE void signal_counter(unsigned* counter, unsigned value) {{
  __hip_atomic_fetch_add(counter, value, {_COUNTED.format("RELEASE")});
}}""",
    "signal_counter_of": """
DEVICE void signal_counter_of(unsigned* counter, unsigned of) {
  __builtin_amdgcn_atomic_inc32(counter, of - 1, __ATOMIC_RELEASE, "agent");
}""",
    "take_ticket": f"""
DEVICE int take_ticket(unsigned* counter) {{
  return __hip_atomic_fetch_add(counter, 1u, {_COUNTED.format("ACQ_REL")});
}}""",
    "take_ticket_of": """
DEVICE int take_ticket_of(unsigned* counter, unsigned of) {
  return __builtin_amdgcn_atomic_inc32(counter, of - 1, __ATOMIC_ACQ_REL, "agent");
}""",
    "await_counter": f"""
DEVICE void await_counter(const unsigned* counter, unsigned value) {{
  while (__hip_atomic_load(counter, {_COUNTED.format("ACQUIRE")}) < value) __builtin_amdgcn_s_sleep(1);
}}""",
    "reset_counter": f"""
DEVICE void reset_counter(unsigned* counter) {{
  __hip_atomic_store(counter, 0u, {_COUNTED.format("RELAXED")});
}}""",
}

ATOMICS = {
    (kind, dtype): tuple(Atomic(f"reduce_{kind}_{dtype}_{memory}", memory=memory) for memory in _SCOPES)
    for kind, dtype in _KINDS
}
