"""Instructions, wavefronts and bank conflicts of shared memory in the examples: predicted and measured.

    python benchmarks/conflicts.py [--quick] [--json results/conflicts.json]

These are the figures of `tilewright inspect --measure` for examples 02 to 10. If nothing can be measured, the
tables have the predictions for `ARCH`. Exits with 1 if a kernel could not be measured or predicted.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from reporting import ROOT, arguments, keep

from tilewright.errors import TilewrightError
from tilewright.inspect.comparison import TrafficComparison, compare, predict, require_gpu
from tilewright.inspect.from_files import from_file
from tilewright.inspect.subject import Subject
from tilewright.runtime.cuda import CUDA_DRIVER

ARCH = "sm_90a"


@dataclass(frozen=True)
class Case:
    """A kernel of an example.

    Args:
        kernel: file and name.
        few: extents that are whole tiles.
        many: extents that fill a GPU.
        constants: its constants in the example, and its scalar arguments.
        dtypes: dtypes of its arrays.
    """

    kernel: str
    few: str = "512x384x320"
    many: str = "3840x4096x4096"
    constants: tuple[str, ...] = ()
    dtypes: str = "f16"

    def subject(self, quick: bool) -> Subject:
        """Return the kernel with its arrays."""
        return from_file(str(ROOT / "examples" / self.kernel), self.dtypes, self.shape(quick), self.constants)

    def shape(self, quick: bool) -> str:
        """Return the extents."""
        return self.few if quick else self.many

    def arguments(self, quick: bool) -> list[str]:
        """Return the same as arguments of `tilewright inspect`."""
        given = [word for constant in self.constants for word in ("--set", constant)]
        asked = ["--target", "cuda", "--dtype", self.dtypes, "--shape", self.shape(quick)]
        return [str(ROOT / "examples" / self.kernel), *asked, *given]


MMA = "mma=tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2), repeats="
LEVEL = ("tile=(128, 128, 32)", f"{MMA}(4, 8))")
WGMMA = ("mma=tw.TiledMma(tw.atoms.wgmma(tw.f16, 256))", "stages=4", "buffers=2", "blocks=132", "group=8")
FUSED = ("tile=(64, 64, 32, 128)", "atom=tw.atoms.MMA_F16", "warps=4")
ATTENTION = ("tile=TILES[64][0]", "warps=4", "atom=tw.atoms.MMA_F16", "scale=0.125", "shift=0")
HOPPER = ("keys=128", "depth=64", "stages=2", "groups=2", "atom=tw.atoms.wgmma", "scale=0.125", "shift=0")
SOME, ALL = "B=1,H=2,M=512,N=512,D=64", "B=2,H=8,M=4096,N=4096,D=64"

CASES: dict[str, Case] = {
    "02": Case("02_basic_gemm.py:LARGE"),
    "03": Case("03_hopper_gemm.py:hopper_gemm", "512x768x320", constants=WGMMA),
    "04": Case("04_optimized_gemm.py:LARGE"),
    "05": Case(
        "05_im2col.py:LARGE",
        "N=2,D=5,H=4,W=6,G=2,C=64,P=48,T=1728",
        "N=32,D=9,H=9,W=7,G=4,C=64,P=7840,T=1728",
    ),
    "06": Case("06_warp_tiles_gemm.py:warp_tiles_gemm", constants=("tile=(128, 64, 32)", f"{MMA}(4, 4))")),
    "07 serial": Case("07_three_levels_gemm.py:serial", constants=LEVEL),
    "07 buffered": Case("07_three_levels_gemm.py:buffered", constants=LEVEL),
    "07 prefetched": Case("07_three_levels_gemm.py:prefetched", constants=(*LEVEL, "stages=4")),
    "08": Case(
        "08_fused_gemms.py:fused_gemms",
        "M=512,N=192,K=128,P=256",
        "M=4096,N=512,K=512,P=512",
        FUSED,
        "A=f16,B=f16,C=f16,D=f32",
    ),
    **{
        f"{number}{' causal' * causal}": Case(kernel, SOME, ALL, (*given, f"causal={causal}"))
        for number, kernel, given in (
            ("09", "09_attention.py:attention", ATTENTION),
            ("10", "10_hopper_attention.py:hopper_attention", HOPPER),
        )
        for causal in (False, True)
    },
}
"""The kernels of the examples, by number."""


def main() -> int:
    asked = arguments(__doc__).parse_args()
    ncu, why = None, ""
    try:
        ncu = require_gpu()
    except TilewrightError as error:
        why = str(error)
    rows: list[dict[str, Any]] = []
    for name in CASES:
        rows.append(row(name, asked.quick, ncu, why))
        keep(asked, "conflicts", "cuda" if CUDA_DRIVER.device_count() else "cpu", rows)
    failed = sum(bool(found["failed"] or found["unknown"]) for found in rows)
    if failed:
        print(f"{failed} of {len(rows)} kernels were not measured, or not predicted", flush=True)
    return 1 if failed else 0


def row(name: str, quick: bool, ncu: str | None, why: str) -> dict[str, Any]:
    """Predict and measure one kernel, and print it.

    Args:
        name: name of the case.
        quick: whether to run only the small extents.
        ncu: Nsight Compute's program, if there is a GPU.
        why: why nothing can be measured.
    """
    case = CASES[name]
    print(f"{case.kernel} {case.shape(quick)}", flush=True)
    found, failed = TrafficComparison(case.kernel, ARCH, {}, {}), why
    try:
        subject = case.subject(quick)
        found = predict(subject, None if ncu else ARCH)
        if ncu:
            found = compare(subject, ncu, case.arguments(quick))
    except TilewrightError as error:
        failed = str(error)
    print(f"{found}\n", flush=True)
    if failed:
        print(f"not measured: {failed}\n", flush=True)
    return {
        "example": name,
        "kernel": case.kernel,
        "shape": case.shape(quick),
        "dtypes": case.dtypes,
        "constants": list(case.constants),
        "arch": found.arch,
        "predicted": dict(found.predicted),
        "measured": dict(found.measured),
        "unknown": found.unknown,
        "failed": failed,
    }


if __name__ == "__main__":
    sys.exit(main())
