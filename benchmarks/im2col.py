"""im2col of examples/05 compared with plain copies: its share of the copy bandwidth; correctness first.

    python benchmarks/im2col.py [--target cuda|cpu] [--quick] [--json results/im2col.json]

All are timed in turns in one run. A copy moves as many bytes as the im2col, which is the image once and the
matrix once; it reads half of them and writes half. On the GPU the rivals are our own copy kernel and
PyTorch's `copy_`, with a cold second-level cache. On the CPU they are NumPy's windows and NumPy's copy.
"""

from __future__ import annotations

import functools
import runpy
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from gemm_cpu import speed
from reporting import ROOT, arguments, effort, keep, table

import tilewright as tw
from tilewright.testing import device_put
from tilewright.tune.measure import measure
from tilewright.tune.trial import OURS

EXAMPLE = runpy.run_path(str(ROOT / "examples" / "05_im2col.py"))
COPY, TORCH, NUMPY, NUMPY_COPY = "our copy", "torch copy_", "NumPy windows", "NumPy copy"
GOAL = 0.7
"""Wanted share of the faster copy's bandwidth, on a GPU."""


@tw.kernel(X="N", Y="N")
def copy(X, Y, *, tile):
    n = tw.block_index(tw.ceil_div(X.shape[0], tile))
    tw.copy(X.tile((tile,), (n,)), Y.tile((tile,), (n,)), threads=256, vector=4)


COPYING = copy.bind(tile=4096)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda")
    asked = parser.parse_args()
    row = problem(EXAMPLE["SMALL" if asked.quick else "SHAPE"], asked)
    keep(asked, "im2col", asked.target, [row])
    lines = [
        [label, f"{timing['median_us']:.1f}", f"{row['gbytes'][label]:.1f}", f"{row['of_copy'][label]:.3f}"]
        for label, timing in row["timings"].items()
    ]
    print(table(("", "us", "GB/s", "of the faster copy"), lines))
    if asked.target == "cuda" and not asked.quick:
        sys.exit(0 if row["of_copy"][OURS] >= GOAL else f"less than {GOAL} of the copy's bandwidth")


def problem(shape: tuple[int, ...], asked: Any) -> dict[str, Any]:
    """Verify and time an image."""
    target, bound = asked.target, EXAMPLE["LARGE"]
    image = np.random.default_rng(0).standard_normal(shape, np.float32)
    windows = EXAMPLE["windows"](image, bound.constants["taps"])
    expected = EXAMPLE["matrix_of"](windows)
    x, y = device_put(image, target), device_put(np.full(expected.shape, np.nan, np.float32), target)
    executable = bound(x, y, target=target)
    assert executable.target == target, executable.target
    np.testing.assert_array_equal(y.host() if target == "cuda" else y, expected)

    moved = image.nbytes + expected.nbytes
    calls: dict[str, Callable[[], object]] = {OURS: functools.partial(bound, x, y, target=target)}
    half = np.random.default_rng(1).standard_normal(-(-moved // 8 // 4) * 4, np.float32)
    source, blank = device_put(half, target), device_put(np.full_like(half, np.nan), target)
    assert COPYING(source, blank, target=target).target == target
    np.testing.assert_array_equal(blank.host() if target == "cuda" else blank, half)
    calls[COPY] = functools.partial(COPYING, source, blank, target=target)
    calls.update(rivals(target, windows, half))
    taken = measure(calls, target, effort=effort(asked))
    copies = [label for label in calls if label in (COPY, TORCH, NUMPY_COPY)]
    fastest = min(copies, key=lambda label: taken[label].us.median)
    return {
        "shape": list(shape),
        "matrix": list(expected.shape),
        "bytes": moved,
        "gbytes": {label: moved / taken[label].us.median / 1e3 for label in calls},
        "of_copy": {label: taken.speed(label, fastest).median for label in calls},
        "speed": {label: speed(taken, OURS, label) for label in calls if label != OURS},
        "fastest_copy": fastest,
        **taken.record(),
    }


def rivals(target: str, windows: Any, half: Any) -> dict[str, Callable[[], object]]:
    """Return the rivals: on the CPU an im2col and a copy, on the GPU a copy."""
    if target == "cpu":
        matrix, out = np.empty(windows.shape, np.float32), np.empty_like(half)
        return {
            NUMPY: functools.partial(np.copyto, matrix, windows),
            NUMPY_COPY: functools.partial(np.copyto, out, half),
        }
    import torch

    source = torch.from_numpy(half).to("cuda")
    out = torch.full_like(source, float("nan"))
    out.copy_(source)
    assert torch.equal(out, source)
    return {TORCH: functools.partial(out.copy_, source)}


if __name__ == "__main__":
    main()
