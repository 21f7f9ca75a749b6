"""Number of kernels that 1,000 random shapes need, and time of the first call of a new shape.

    python benchmarks/kernel_counts.py [--quick] [--target cpu] [--json results/cpu_kernel_counts.json]

M, N and K are drawn uniformly from 1 to 4096; A and B are row-major; the seed is in the record.  Two shapes
share a kernel if they need the same text.  Nothing is launched: kernels are only compiled, or found in the
cache.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import Any

from reporting import arguments, keep, table

import tilewright as tw

DTYPES = ("f32", "f64", "f16", "bf16", "f8e4m3", "i8")
MOST = 4096


@tw.kernel(A="M K", B="K N", C="M N")
def product(A, B, C):
    """``C = A @ B``."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", default="cpu")
    parser.add_argument("--arch", default=None, help="default: the target of this machine")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rows = []
    for name in DTYPES[:1] if asked.quick else DTYPES:
        rows.append(count(name, asked.target, asked.arch, asked.seed, 20 if asked.quick else 1000))
        print(columns(rows[-1]), flush=True)
    print()
    print(table(HEAD, [columns(row) for row in rows]))
    keep(asked, "kernel_counts", asked.target, rows)


HEAD = ("dtype", "shapes", "kernels", "first call of a known kernel, ms")


def count(name: str, target: str, arch: str | None, seed: int, shapes: int) -> dict[str, Any]:
    """Count the kernels of one dtype."""
    drawn = random.Random(seed)
    bound = product.bind()
    out = {"f8e4m3": "f16", "i8": "i32"}.get(name, name)
    texts: dict[str, int] = {}
    known: list[float] = []
    for _ in range(shapes):
        m, n, k = (drawn.randint(1, MOST) for _ in range(3))
        begin = time.perf_counter()
        made = bound.compile(
            tw.like(name, m, k), tw.like(name, k, n), tw.like(out, m, n), target=target, arch=arch
        )
        seconds = time.perf_counter() - begin
        if made.source in texts:
            known.append(seconds)
        texts[made.source] = texts.get(made.source, 0) + 1
    return {
        "name": f"product<{target}, {name}>",
        "dtype": name,
        "seed": seed,
        "most": MOST,
        "shapes": shapes,
        "kernels": len(texts),
        "shapes_of_each": sorted(texts.values(), reverse=True),
        "known_ms": 1e3 * statistics.median(known) if known else None,
    }


def columns(row: dict[str, Any]) -> list[object]:
    """Return the row of the printed table."""
    known = "-" if row["known_ms"] is None else f"{row['known_ms']:.1f}"
    return [row["dtype"], row["shapes"], row["kernels"], known]


if __name__ == "__main__":
    main()
