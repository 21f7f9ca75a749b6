"""Products of i8 into i32 on the CPU, with each instruction set, compared with our f32 and with NumPy.

    python benchmarks/integers_cpu.py [--quick] [--busy] [--json results/cpu_integers.json]

Each instruction set has its own process, which compiles only for this set, even if the CPU has a wider one.
Every element is compared with exact sums first. All calls are timed in turns.
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
from gemm_cpu import AGAIN, rates
from reporting import keep, on_host, table, timed

import tilewright as tw
from tilewright.runtime import host, native
from tilewright.tune.trial import OURS

F32, NUMPY = "tilewright f32", "NumPy, in f32"
SIDES, LAYOUTS = (512, 1024), ("nn", "nt")

SETS = {
    "AVX-512 VNNI": ("x86-64-v4", ("-march=x86-64-v4", "-mavx512vnni"), {"avx512_vnni"}),
    "AVX-512": ("x86-64-v4", ("-march=x86-64-v4",), {"avx512bw"}),
    "AVX-VNNI": ("x86-64-v3", ("-march=x86-64-v3", "-mavxvnni"), {"avx_vnni"}),
    "AVX2": ("x86-64-v3", ("-march=x86-64-v3",), {"avx2"}),
}
"""Instruction set -> architecture, the compiler's flags, and the CPU features that it needs."""


def main() -> None:
    parser = on_host(__doc__)
    parser.add_argument("--isa", choices=SETS, help="measure one set here, and print its rows as JSON")
    asked = parser.parse_args()
    if asked.isa is not None:
        print(json.dumps(measured(asked)))
        return
    rows: list[dict[str, Any]] = []
    for isa, (_, _, needed) in SETS.items():
        if not needed <= native.processor_flags():
            print(f"{isa}: this processor lacks {', '.join(sorted(needed))}")
            continue
        command = [
            sys.executable,
            __file__,
            "--isa",
            isa,
            *(given for given in ("--quick", "--busy") if getattr(asked, given[2:])),
        ]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        rows += json.loads(done.stdout)
    print(table(HEAD, [columns(row) for row in rows]))
    keep(asked, "integers_cpu", "cpu", rows)


@contextlib.contextmanager
def compiling_for(isa: str) -> Iterator[None]:
    """Compile only for one instruction set."""
    arch, given, _ = SETS[isa]
    whole = native.flags()
    wide = (native.WIDE_VECTORS,) if arch == "x86-64-v4" else ()
    found = (*whole[: whole.index(native.NATIVE)], *given, *wide)
    with (
        mock.patch.object(native, "flags", return_value=found),
        mock.patch.object(native, "host_arch", return_value=arch),
        mock.patch.object(host, "host_arch", return_value=arch),
    ):
        yield


def measured(asked: Any) -> list[dict[str, Any]]:
    """Return the rows of one instruction set."""
    rows = []
    with compiling_for(asked.isa):
        for side in (96,) if asked.quick else SIDES:
            for layout in LAYOUTS:
                rng = np.random.default_rng(0)
                a, drawn = (rng.integers(-128, 128, (side, side), np.int8) for _ in range(2))
                b = drawn if layout == "nn" else drawn.T
                c = np.full((side, side), 77, np.int32)
                wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
                wide_c = np.full((side, side), np.nan, np.float32)
                ours = functools.partial(tw.matmul, a, b, c, target="cpu")
                floats = functools.partial(tw.matmul, wide_a, wide_b, wide_c, target="cpu")
                ours()
                exact = wide_a.astype(np.float64) @ wide_b
                assert np.array_equal(c, exact), f"{asked.isa}: products of i8 are wrong"
                floats()
                assert np.array_equal(wide_c, exact), f"{asked.isa}: products of f32 are wrong"
                calls = {OURS: ours, AGAIN: ours, F32: floats}
                calls[NUMPY] = functools.partial(np.matmul, wide_a, wide_b, out=np.empty_like(wide_c))
                taken = timed(calls, asked)
                rows.append(
                    {
                        "isa": asked.isa,
                        "dtype": "i8",
                        "shape": [side] * 3,
                        "layout": layout,
                        "target": "cpu",
                        **rates(taken, 2 * side**3),
                    }
                )
    return rows


HEAD = ("instructions", "problem", "i8 GFlops", "f32 GFlops", "over our f32", "over NumPy's f32", "again")


def columns(row: dict[str, Any]) -> list[str]:
    """Return the row of the printed table."""
    problem = f"i8 {'x'.join(map(str, row['shape']))} {row['layout']}"
    rate = [f"{row['gflops'][name]:.0f}" for name in (OURS, F32)]
    speeds = [
        f"{median:.3f} [{low:.3f}, {high:.3f}]"
        for median, low, high in (row["speed"][name] for name in (F32, NUMPY, AGAIN))
    ]
    return [row["isa"], problem, *rate, *speeds]


if __name__ == "__main__":
    main()
