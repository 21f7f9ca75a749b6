"""Small GEMMs of every kind on the GPU, for `compute-sanitizer python benchmarks/sanitize.py`.

    --planted leaves out the barrier after the multiply, so that the tool has something to find

No framework is loaded: the tool sees our kernels and nothing else.
"""

from __future__ import annotations

import argparse

import tilewright as tw
from tilewright.ops.config import Config
from tilewright.ops.sample import operands
from tilewright.targets.atoms import MMA_F16
from tilewright.tune.trial import Trial, gemm_trial

SHAPES = ((128, 128, 64), (129, 129, 67))
CASES = (
    ("f64", "exact"),
    ("f32", "exact"),
    ("f32", "tf32"),
    ("f16", "exact"),
    ("bf16", "exact"),
    ("i8", "exact"),
)


@tw.kernel(A="M K", B="N K", C="M N")
def racy_gemm(A, B, C, *, tile, threads, mma):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, tile_k), A.dtype)
    sB = tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=threads)
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=threads)
        tw.barrier()
        tw.mma(sA, sB, acc)  # the next copies may overwrite what another warp still reads
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--planted", action="store_true")
    if parser.parse_args().planted:
        mma = tw.TiledMma(MMA_F16, warps=(2, 2), repeats=(2, 4))
        bound = racy_gemm.bind(tile=(64, 64, 32), threads=(32, 4), mma=mma)
        Trial(bound, operands("random", tw.f16, (64, 64, 256), layout="nt"), "cuda", MMA_F16, "racy").run()
        return
    for name, math in CASES:
        for shape in SHAPES:
            for layout in ("nn", "nt", "tn", "tt"):
                attempt(gemm_trial(operands("random", tw.dtype(name), shape, layout=layout), "cuda", math))
    for stages in (1, 2, 3):
        config = Config.of(MMA_F16, (64, 64, 32), (2, 2), stages)
        attempt(gemm_trial(operands("random", tw.f16, (192, 160, 224)), "cuda", config=config))


def attempt(trial: Trial) -> None:
    trial.run()
    trial.verify().raise_if_wrong()
    print(trial.name, trial.operands.shape, "verified", flush=True)


if __name__ == "__main__":
    main()
