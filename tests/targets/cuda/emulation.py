"""Compiles the text of CUDA kernels for the host; `emulator.h` replaces the instructions."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.runtime.native import Toolchain
from tilewright.targets.cuda.prelude import DIALECT
from tilewright.targets.rules import EmittedText

HEADER = Path(__file__).with_name("emulator.h")
GUARD = 512
"""Elements before and after an array that must not be read or written."""

OVERRIDES = {
    "half_to_float": "static float half_to_float(half_t x) { return from_half(x); }",
    "float_to_half": "static half_t float_to_half(float x) { return to_half<half_t>(x); }",
    "double_to_half": "static half_t double_to_half(double x) { return to_half<half_t>(x); }",
    "float_to_bf16": "static bf16_t float_to_bf16(float x) { return to_bf16<bf16_t>(x); }",
    "fast_exp2": "static float fast_exp2(float x) { return exp2f(x); }",
    "fast_reciprocal": "static float fast_reciprocal(float x) { return 1.0f / x; }",
    **{
        f"{name}_or_nan": f"template <class T> static T {name}_or_nan(T a, T b) "
        f"{{ return a {sign} b || a != a ? a : b; }}"
        for name, sign in (("max", ">"), ("min", "<"))
    },
    **{
        f"{source}_pair_to_{kind}": f"static void {source}_pair_to_{kind}({kind}_t* to, const {given}* from) "
        f"{{ for (int i = 0; i < 2; ++i) to[i] = to_{kind}<{kind}_t>({value}); }}"
        for source, given, value in (
            ("e4m3", "e4m3_t", "from_e4m3(from[i].bits)"),
            ("e5m2", "e5m2_t", "from_e5m2(from[i].bits)"),
            ("i8", "signed char", "from[i]"),
        )
        for kind in ("half", "bf16")
    },
    "sub_f16x2": "static unsigned sub_f16x2(unsigned x, unsigned z) "
    "{ return of_halves([](double a, double b, double) { return a - b; }, x, z, 0); }",
    "mul_f16x2": "static unsigned mul_f16x2(unsigned x, unsigned z) "
    "{ return of_halves([](double a, double b, double) { return a * b; }, x, z, 0); }",
    "fma_f16x2": "static unsigned fma_f16x2(unsigned x, unsigned z, unsigned sum) "
    "{ return of_halves([](double a, double b, double c) { return fma(a, b, c); }, x, z, sum); }",
    "fma_bf16x2": "static unsigned fma_bf16x2(unsigned x, unsigned z, unsigned sum) "
    "{ return of_bf16s([](float a, float b, float c) { return fmaf(a, b, c); }, x, z, sum); }",
    "copy_async": """template <int bytes>
static void copy_async(void* to, const void* from, bool exists = true) {
  if (exists) memcpy(to, from, bytes); else memset(to, 0, bytes);
}""",
    "async_commit": "static void async_commit() {}",
    "async_wait": "template <int pending> static void async_wait() {}",
    "prior_grid_wait": "static void prior_grid_wait() {}",
    "launch_dependents": "static void launch_dependents() {}",
    **{
        f"ldmatrix_x{n}{t}": f"static void ldmatrix_x{n}{t}(void* to, const void* from) "
        f"{{ ldmatrix<{n}, {'true' if t else 'false'}>(to, from); }}"
        for n in (1, 2, 4)
        for t in ("", "_trans")
    },
    **{
        f"stmatrix_x{n}{t}": f"static void stmatrix_x{n}{t}(void* to, const void* from) "
        f"{{ stmatrix<{n}, {'true' if t else 'false'}>(to, from); }}"
        for n in (1, 2, 4)
        for t in ("", "_trans")
    },
    **{
        f"mma_{name}": f"static void mma_{name}({total}* c, const void* a, const void* b) "
        f"{{ mma<{kind}, {parts}>(c, a, b); }}"
        for name, total, kind, parts in (
            ("m16n8k16_f16", "float", "F16", 2),
            ("m16n8k16_bf16", "float", "BF16", 2),
            ("m16n8k8_tf32", "float", "TF32", 1),
            ("m16n8k32_s8", "int", "S8", 4),
        )
    },
    "mma_m16n8k16_f16_f16": """static void mma_m16n8k16_f16_f16(half_t* c, const void* a, const void* b) {
  double sums[4];
  for (int i = 0; i < 4; ++i) sums[i] = from_half(c[i]);
  mma<F16, 2>(sums, a, b);
  for (int i = 0; i < 4; ++i) c[i] = to_half<half_t>(sums[i]);
}""",
    **{
        f"cluster_block_{axis}": f"static int cluster_block_{axis}() {{ return cluster_index[{at}]; }}"
        for at, axis in enumerate("xyz")
    },
}
"""What stands for the pieces of the prelude that are made of instructions."""


LOOK_UPS = re.compile(r"^__device__ __forceinline__ (\w+ take\w+\(.*?^\})$", re.MULTILINE | re.DOTALL)
"""The functions of a text that look up codes in a table."""


def kernel_text(listing: EmittedText) -> str:
    """Return the kernel without the prelude."""
    return listing.text[listing.text.index('extern "C" __global__') :]


def source(listings: Mapping[str, EmittedText]) -> str:
    """Return one C++ text with every kernel in its own namespace, and a function to call each."""
    kernels = "\n".join(kernel_text(listing) for listing in listings.values())
    whole = "\n".join(listing.text for listing in listings.values())
    known = DIALECT.prelude
    pieces = [OVERRIDES.get(name, text) for name, text in known.items() if text in whole]
    # Instructions that are spelled from atoms are no pieces of the prelude.
    pieces += [text for name, text in OVERRIDES.items() if name not in known and f"{name}(" in kernels]
    # Tables are functions of one kernel, in plain C++.
    pieces += dict.fromkeys(f"static {text}" for text in LOOK_UPS.findall(whole))
    assert not (wrong := [text for text in pieces if "asm" in text]), wrong
    parts = [f'#include "{HEADER}"', *pieces]
    for at, listing in enumerate(listings.values()):
        kernel = kernel_text(listing).removeprefix('extern "C" ')
        kernel = re.sub(r"extern __shared__ .*", "unsigned char* shared_memory = emulated_shared;", kernel)
        parameters = re.search(rf"\b{listing.entry}\(\s*([^)]*)\)", kernel)
        assert parameters is not None
        types = [re.sub(r"\w+$", "", parameter.strip()).strip() for parameter in parameters[1].split(",")]
        unpacked = ", ".join(f"*({kind}*)arguments[{i}]" for i, kind in enumerate(types))
        parts.append(f"namespace case_{at} {{\n{kernel}\nstatic void call(void** arguments) {{")
        parts.append(f"  {listing.entry}({unpacked});\n}}\n}}")
    calls = ", ".join(f"case_{at}::call" for at in range(len(listings)))
    parts.append(f"""
extern "C" int run(int which, const int* grid, const int* cluster, int count, void** arguments) {{
  static void (*const calls[])(void**) = {{{calls}}};
  entry = calls[which];
  entry_arguments = arguments;
  threads = count;
  for (int z = 0; z < grid[2]; ++z)
    for (int y = 0; y < grid[1]; ++y)
      for (int x = 0; x < grid[0]; ++x) {{
        blockIdx = Index{{x, y, z}};
        for (int axis = 0; axis < 3; ++axis) cluster_index[axis] = (&blockIdx.x)[axis] % cluster[axis];
        if (run_block()) return 1;
      }}
  return 0;
}}""")
    return "\n\n".join(parts)


def library_of(text: str, toolchain: Toolchain, directory: Path) -> ctypes.CDLL:
    """Compile C++ text for the host."""
    file, library = directory / "kernels.cpp", directory / "kernels.so"
    file.write_text(text)
    flags = ("-std=c++17", "-O1", "-w", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing")
    compiler = list(toolchain.compiler)
    if toolchain.name == "zig":
        # Its driver brings the C headers and the conversions of half floats.
        compiler = [compiler[0], "c++", "-nostdlib++"]
    command = [*compiler, *flags, str(file), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


class Emulator:
    """The kernels of some listings, compiled for the host."""

    def __init__(self, listings: Mapping[str, EmittedText], toolchain: Toolchain, directory: Path) -> None:
        self.names = list(listings)
        self._library = library_of(source(listings), toolchain, directory)

    def run(
        self,
        name: str,
        grid: Sequence[int],
        threads: int,
        arguments: Sequence[Any],
        cluster: Sequence[int] = (),
    ) -> None:
        """Run one kernel in place on packed arguments, which are ctypes values."""
        addresses = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        shape = (ctypes.c_int * 3)(*(*grid, 1, 1)[:3])
        blocks = (ctypes.c_int * 3)(*(*cluster, 1, 1, 1)[:3])
        deadlock = self._library.run(self.names.index(name), shape, blocks, threads, addresses)
        assert not deadlock, f"{name}: threads wait for each other"


class Guarded:
    """A copy of an array with poison around it, and a 16-byte aligned first element."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        strides = tuple(stride // array.itemsize for stride in array.strides)
        span = 1 + sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True))
        raw = np.full((span + 2 * GUARD + 16) * array.itemsize, 0xFF, np.uint8)
        shift = -raw.ctypes.data % 16
        self._raw = raw
        self._start = shift + GUARD * array.itemsize
        self.array = np.ndarray(array.shape, array.dtype, raw, self._start, array.strides)
        self._outside = np.ones(raw.shape, bool)
        offsets = sum(np.indices(array.shape)[d] * s for d, s in enumerate(strides)) if array.ndim else 0
        for byte in range(array.itemsize):
            self._outside[self._start + np.ravel(offsets) * array.itemsize + byte] = False
        self.array[...] = array

    @property
    def address(self) -> int:
        """Address of the first element."""
        return self._raw.ctypes.data + self._start

    @property
    def untouched(self) -> bool:
        """Whether nothing outside the array was written."""
        return bool((self._raw[self._outside] == 0xFF).all())
