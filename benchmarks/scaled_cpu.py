"""fp16 by 8-bit weights with scales and bias on the CPU, beside NumPy in f32 on weights converted before.

    python benchmarks/scaled_cpu.py [--quick] [--busy] [--rows-of M ...] [--side N]
        [--json results/cpu_scaled.json]

Each result is verified before it is timed. NumPy has A and the weights in f32, converted before and in their
order in memory, and multiplies, scales and adds the bias in place: three calls. Ours reads f16 and 8 bits and
rounds to f16. It is timed twice, under two names: what the two differ by is noise.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from gemm_cpu import AGAIN, HEAD, columns, line, rates
from reporting import keep, on_host, table, timed

import tilewright as tw
from tilewright.tune.trial import OURS

NUMPY = "NumPy, in f32"
ROWS, SIDE = (1, 4, 16, 64, 256), 4096
KINDS = (("f8e4m3", "k"), ("f8e4m3", "n"), ("f8e5m2", "k"), ("i8", "k"))


def main() -> None:
    parser = on_host(__doc__)
    parser.add_argument("--rows-of", type=int, nargs="*", help="rows of A")
    parser.add_argument("--side", type=int, help="of the weights")
    asked = parser.parse_args()
    side = asked.side or (256 if asked.quick else SIDE)
    rows = []
    for kind, along in KINDS[:1] if asked.quick else KINDS:
        for m in asked.rows_of or ((16,) if asked.quick else ROWS):
            rows.append(row(m, side, kind, along, asked))
            print(line(rows[-1]), flush=True)
    print()
    print(table(HEAD, [columns(found) for found in rows]))
    keep(asked, "scaled_cpu", "cpu", rows)


def row(m: int, side: int, kind: str, along: str, asked: Any) -> dict[str, Any]:
    """One problem: verified, then timed."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(-128, 128, (side, side)) if kind == "i8" else rng.standard_normal((side, side))
    stored = drawn.astype(tw.dtype(kind).numpy)
    b = stored.T if along == "k" else stored
    a = rng.standard_normal((m, side)).astype(np.float16)
    scale = (rng.random(side, np.float32) + 0.5) / 64
    bias = rng.standard_normal(side, np.float32)
    out = np.full((m, side), np.nan, np.float16)
    wide_a, wide_b, made = a.astype(np.float32), b.astype(np.float32), np.empty((m, side), np.float32)

    def theirs() -> None:
        np.matmul(wide_a, wide_b, out=made)
        np.multiply(made, scale, out=made)
        np.add(made, bias, out=made)

    ours = functools.partial(tw.scaled_mm, a, b, out, scale_b=scale, bias=bias, target="cpu")
    ours()
    of_bound = error_of_bound(out, a, b, scale, bias)
    taken = timed({OURS: ours, AGAIN: ours, NUMPY: theirs}, asked)
    return {
        "name": "scaled_mm",
        "dtype": f"f16 × {kind}",
        "shape": [m, side, side],
        "layout": f"contiguous along {along}",
        "target": "cpu",
        "error_of_bound": of_bound,
        "weight_bytes": {OURS: b.nbytes, NUMPY: wide_b.nbytes},
        **rates(taken, 2 * m * side * side),
    }


def error_of_bound(out: Any, a: Any, b: Any, scale: Any, bias: Any) -> float:
    """The largest error over its bound, which sums in f32 and a rounding to f16 have; at most 1."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    exact = a @ b * scale + bias
    sizes = np.abs(a) @ np.abs(b) * scale + np.abs(bias)
    bound = (a.shape[1] + 3) * 2.0**-24 * sizes + 2.0**-11 * np.abs(exact) * (1 + 2.0**-10) + 2.0**-25
    found = float(np.max(np.abs(out.astype(np.float64) - exact) / bound))
    assert found <= 1, f"an error is {found:.3g} of its bound"
    return found


if __name__ == "__main__":
    main()
