"""The basic GEMM, C = A Bᵀ: every tile, copy, barrier and multiply placed by hand.

    python examples/02_basic_gemm.py [--small] [--target cuda|cpu|reference] [verify init time [M N K]]

First fp16 with a tile of 256 x 128 x 32 and 256 threads (3840 x 4096 x 4096 on a GPU), then 129 x 129 x 67,
which no tile divides, in f32, f16 and int8. Every element is compared with a product of higher precision.
"""

from __future__ import annotations

import argparse

import tilewright as tw
from tilewright.checking.sample import operands
from tilewright.runtime.cuda import device_count
from tilewright.tune.measure import QUICK
from tilewright.tune.trial import OURS, Trial


@tw.kernel(A="M K", B="N K", C="M N")
def basic_gemm(A, B, C, *, tile, threads, mma, vector):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, tile_k), A.dtype)
    sB = tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k), provenance="mainloop"):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=threads, vector=vector)
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=threads, vector=vector)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


# 4 x 2 warps, each with 4 x 8 instructions of 16 x 8 x 16, cover the tile of 256 x 128.
LARGE = basic_gemm.bind(
    tile=(256, 128, 32),
    threads=256,
    mma=tw.TiledMma(tw.atoms.MMA_F16, warps=(4, 2), repeats=(4, 8)),
    vector=8,
)
SHAPES = {"cuda": (3840, 4096, 4096), "cpu": (1280, 1024, 1024), "reference": (256, 128, 96)}
SMALL = {"cuda": (512, 384, 320), "cpu": (512, 384, 320), "reference": (256, 128, 64)}

# 2 x 2 warps cover a tile of 64 x 64 with each of these instructions.
PADDED = (129, 129, 67)
ATOMS = {
    tw.f32: tw.TiledMma(tw.atoms.fma(tw.f32), warps=(2, 2), repeats=(8, 4)),
    tw.f16: tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2), repeats=(2, 4)),
    tw.i8: tw.TiledMma(tw.atoms.MMA_I8, warps=(2, 2), repeats=(2, 4)),
}


def padded(dtype, mma):
    """The kernel for rows of any length and start: each access is one element."""
    return basic_gemm.bind(tile=(64, 64, 32), threads=128, mma=mma, vector=1)


def attempt(bound, dtype, shape, target, verify=1, init=2, time=1):
    """Run a kernel, verify every element, and print the time of a call; gives the trial back."""
    tile, mma = bound.constants["tile"], bound.constants["mma"]
    m, n, k = shape
    about = f"{m}x{n}x{k} in tiles of {'x'.join(map(str, tile))}, {mma.atom}"
    # "nt": A is stored row after row, and B (K, N) column after column, which is Bᵀ row after row.
    made = operands({1: "integers", 2: "random"}[init], dtype, shape, layout="nt")
    trial = Trial(bound, made, target, mma.atom, about)
    executable, seconds = trial.run()
    assert executable.target == target, f"{executable.target} ran instead of {target}"
    if verify:
        comparison = trial.verify()
        comparison.raise_if_wrong()
        print(f"{trial.name} on {executable.arch}: {comparison}")
    if time and target != "reference":  # which looks for hazards, thread by thread; nobody needs its time
        seconds = trial.time(QUICK)[OURS].us.median / 1e6
    print(trial.perf(1e6 * seconds))
    return trial


def arguments(description):
    """Target, size, and what a row of numbers asks for, as in Composable Kernel's examples."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="small matrices")
    default = "cuda" if device_count() else "cpu"
    parser.add_argument("--target", choices=SHAPES, default=default, help=f"default here: {default}")
    numbers = "verify (0, 1), init (1 integers, 2 random), time (0, 1); extents of the first problem"
    parser.add_argument("numbers", nargs="*", type=int, metavar="verify init time M N K", help=numbers)
    asked = parser.parse_args()
    given = asked.numbers or [1, 2, 1]
    if len(given) not in (3, 6) or given[1] not in (1, 2) or min(given[3:], default=1) < 1:
        parser.error(f"{given}: give verify init time [M N K], e.g. 1 2 1 3840 4096 4096; init is 1 or 2")
    asked.how = given[:3]
    asked.shape = tuple(given[3:]) or (SMALL if asked.small else SHAPES)[asked.target]
    return asked


def main():
    asked = arguments(__doc__)
    attempt(LARGE, tw.f16, asked.shape, asked.target, *asked.how)
    for dtype, mma in ATOMS.items():
        attempt(padded(dtype, mma), dtype, PADDED, asked.target, *asked.how)


if __name__ == "__main__":
    main()
