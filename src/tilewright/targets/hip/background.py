"""Text of loads that go straight into shared memory, and of the wait for them.

Source: AMD's ISA documents of CDNA 2, 3 and 4, section "Global", ``GLOBAL_LOAD_LDS``; LLVM, "User Guide for
AMDGPU Backend".
"""

from __future__ import annotations


def _load(width: int, spelled: str) -> str:
    return f"""
DEVICE void load_to_shared_{width}(const void* from, unsigned to) {{
  // {width} bytes of each lane, one lane behind the other; nothing but `loads_wait` waits for them.
  asm volatile(
      "s_mov_b32 m0, %1\\n\\t"
      "s_nop 0\\n\\t"
{spelled}
      :
      : "v"(from), "s"(to)
      : "memory", "m0");
}}"""


PIECES = {
    "zeros": """
// What loads read in the place of elements that do not exist.  Nothing writes them; they are not called
// constants, for the compiler would then not know that an address is one of global memory.
__attribute__((device, aligned(16))) static unsigned zeros[4] = {0, 0, 0, 0};""",
    "load_or_zeros": """
template <class Word>
DEVICE Word load_or_zeros(bool exists, const void* from) {
  return *(const Word*)(exists ? from : (const void*)zeros);
}""",
    "anew": """
DEVICE int anew(int x) {
  // What conditions on x are is computed here, and not kept since before.
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
