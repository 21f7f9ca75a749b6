"""Counters between blocks in CUDA text: releases and acquires at the scope of the device.

Source: PTX ISA, "Memory Consistency Model: Release and Acquire Patterns", and "red", "atom", "ld".  ``inc``
goes from its bound to 0.  A thread that waits sleeps longer and longer, so that many blocks may wait.
"""

from __future__ import annotations

_ADDRESS = '"l"((unsigned long long)__cvta_generic_to_global(counter))'

PIECES = {
    "signal_counter": f"""
DEVICE void signal_counter(unsigned* counter, unsigned value) {{
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;"
               ::{_ADDRESS}, "r"(value) : "memory");
}}""",
    "signal_counter_of": f"""
DEVICE void signal_counter_of(unsigned* counter, unsigned of) {{
  asm volatile("red.release.gpu.global.inc.u32 [%0], %1;"
               ::{_ADDRESS}, "r"(of - 1) : "memory");
}}""",
    "take_ticket": f"""
DEVICE int take_ticket(unsigned* counter) {{
  int old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;"
               : "=r"(old) : {_ADDRESS} : "memory");
  return old;
}}""",
    "take_ticket_of": f"""
DEVICE int take_ticket_of(unsigned* counter, unsigned of) {{
  int old;
  asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
               : "=r"(old) : {_ADDRESS}, "r"(of - 1) : "memory");
  return old;
}}""",
    "await_counter": f"""
DEVICE void await_counter(const unsigned* counter, unsigned value) {{
  for (unsigned sleep = 8;; sleep = sleep < 256 ? 2 * sleep : sleep) {{
    unsigned seen;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                 : "=r"(seen) : {_ADDRESS} : "memory");
    if (seen >= value) return;
    asm volatile("nanosleep.u32 %0;" ::"r"(sleep));
  }}
}}""",
    "reset_counter": f"""
DEVICE void reset_counter(unsigned* counter) {{
  asm volatile("st.relaxed.gpu.global.u32 [%0], 0;"
               ::{_ADDRESS} : "memory");
}}""",
}
"""The functions that the text may call."""
