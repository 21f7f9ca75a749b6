"""Bank conflicts, wavefronts and sectors of the examples' GEMMs: predicted, and measured by Nsight Compute.

    python benchmarks/conflicts.py [--quick]

Runs `tilewright inspect --measure` for examples 02, 04 and every level of 07 in f16 and prints the tables.
Exits with 1 if a kernel could not be measured.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

LEVEL = ("tile=(128, 128, 32)", "mma=tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2), repeats=(4, 8))")
KERNELS: dict[str, tuple[str, ...]] = {
    "examples/02_basic_gemm.py:LARGE": (),
    "examples/04_optimized_gemm.py:LARGE": (),
    "examples/07_three_levels_gemm.py:serial": LEVEL,
    "examples/07_three_levels_gemm.py:buffered": LEVEL,
    "examples/07_three_levels_gemm.py:prefetched": (*LEVEL, "stages=4"),
}
"""Each kernel, and the constants that the example gives it."""


def command(kernel: str, constants: tuple[str, ...], shape: str) -> list[str]:
    """`tilewright inspect` of a kernel."""
    given = [word for constant in constants for word in ("--set", constant)]
    asked = ["--target", "cuda", "--dtype", "f16", "--shape", shape, "--measure"]
    return [sys.executable, "-m", "tilewright", "inspect", kernel, *given, *asked]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small matrices")
    shape = "512x384x320" if parser.parse_args().quick else "3840x4096x4096"
    failed = 0
    for kernel, constants in KERNELS.items():
        print(f"{kernel} {shape}", flush=True)
        failed += subprocess.run(command(kernel, constants, shape), cwd=ROOT).returncode != 0
        print(flush=True)
    if failed:
        print(f"{failed} of {len(KERNELS)} kernels were not measured", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
