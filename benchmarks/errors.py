"""Errors of products at each precision grade, on five kinds of data, compared with cuBLAS or NumPy.

    python benchmarks/errors.py --target cuda --json results/h200_errors.json
    python benchmarks/errors.py --target cpu

The error of an element is divided by the sum of the magnitudes of its products, in units of 2**-24 (f64:
2**-53).  Products of f64 are compared with products in twice the bits (`exact_products.py`).  The table has
the largest error, and the Frobenius norm of all errors over that of the result.  For complex products both
refer to real and imaginary parts.  Data: normal numbers; numbers from 0 to 1; rows and columns with different
ranges; sums that mostly cancel; and sums of products of huge and tiny factors.

In large products only some rows are compared.  The reference multiplies f32 as tensor cores do; a CPU has
fewer grades.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from exact_products import off_by, parts_of_product
from reporting import arguments, keep, table

import tilewright as tw
from tilewright.checking.composed_products import planes
from tilewright.tune.rivals import as_tensor

EXTENTS = {"reference": (64, 48, 256), "cpu": (256, 256, 1024), "cuda": (1024, 1024, 2048)}
ROWS = {24: 128, 53: 32}
"""Rows of the result that are compared, by the bits of a unit."""

SYNC = tw.Schedule(tw.atoms.MMA_F16, (64, 48, 32), warps=(2, 1), stages=2, staging="cp_async")
OF_BF16, OF_TF32 = (
    tw.Schedule(atom, (64, 48, 32), warps=(2, 1), stages=2, staging="cp_async")
    for atom in (tw.atoms.MMA_BF16, tw.atoms.MMA_TF32)
)
PROMOTED = tw.Schedule(SYNC.atom, (64, 48, 32), warps=(2, 1), stages=2, staging="cp_async", promote=4)


@dataclass(frozen=True)
class Grade:
    """A way to multiply numbers.

    Args:
        name: its name in the table.
        element: dtype of the operands, or of their parts.
        precision: the argument of `tw.matmul`.
        on_reference: the schedule on the reference; None: the chosen one.
        rival: cuBLAS's computation for comparison, a dtype or ``"tf32"``; empty: none.
    """

    name: str
    element: str
    precision: str = "exact"
    on_reference: Any = None
    rival: str = ""

    @property
    def bits(self) -> int:
        """Bits of the unit of errors: the unit is 2**-bits."""
        return 53 if self.element == "f64" else 24


REAL = (
    Grade("f64", "f64", rival="f64"),
    Grade("f32", "f32", rival="f32"),
    Grade("f32 by halves", "f32", "f32", PROMOTED, "f32"),
    Grade("tf32", "f32", "tf32", OF_TF32, "tf32"),
    Grade("f32 by one half", "f32", "f16", SYNC, "tf32"),
    Grade("f16", "f16", on_reference=SYNC, rival="f16"),
    Grade("bf16", "bf16", on_reference=OF_BF16, rival="bf16"),
)
COMPLEX = (
    Grade("complex f64", "f64", rival="f64"),
    Grade("complex f32", "f32", rival="f32"),
    Grade("complex f32 by halves", "f32", "f32", PROMOTED, "f32"),
    Grade("complex tf32", "f32", "tf32", OF_TF32, "tf32"),
    Grade("complex f32 by one half", "f32", "f16", SYNC, "tf32"),
    Grade("complex f16", "f16", on_reference=SYNC),
    Grade("complex bf16", "bf16", on_reference=OF_BF16),
)

TOGETHER = {tw.f32: np.complex64, tw.f64: np.complex128}
"""Dtypes of complex arrays, by the dtype of their parts; other parts are pairs of planes."""

BY_MATRIX_UNITS = ("f32", "tf32", "f16")
"""Grades of f32 that machines without tensor cores compute as "exact"."""


def wide(rng: np.random.Generator, a: Any, b: Any, kind: Any) -> tuple[Any, Any]:
    """Draw rows of A and columns of B with different ranges."""
    reach = 3 if kind == tw.f16 else 40
    rows, columns = (
        np.exp2(rng.integers(-reach, reach + 1, shape)) for shape in ((len(a), 1), (1, b.shape[1]))
    )
    return a * rows, b * columns


def cancelling(rng: np.random.Generator, a: Any, b: Any, kind: Any) -> tuple[Any, Any]:
    """Draw operands for which the second half of each sum cancels all but some bits of the first."""
    half = len(b) // 2
    left, right = a[:, :half], b[:half]
    return np.hstack([left, -left]), np.vstack([right, right * (1 + 2.0 ** -(kind.mantissa // 2 + 1))])


def huge_by_tiny(rng: np.random.Generator, a: Any, b: Any, kind: Any) -> tuple[Any, Any]:
    """Draw factors of all magnitudes within each sum, whose products have similar magnitudes."""
    unit = np.exp2(rng.integers(-8, 9, len(b)) * (1 if kind == tw.f16 else 4))
    return a * unit, b / unit[:, None]


DATA: dict[str, Callable[..., tuple[Any, Any]]] = {
    "normal": lambda rng, a, b, kind: (a, b),
    "positive": lambda rng, a, b, kind: tuple(rng.random(x.shape) for x in (a, b)),
    "wide": wide,
    "cancelling": cancelling,
    "huge x tiny": huge_by_tiny,
}


def drawn(data: str, shapes: Any, grade: Grade, is_complex: bool) -> tuple[Any, Any]:
    """Draw operands: arrays, complex arrays, or pairs of planes; all parts have the same ranges."""
    kind, rng, parts = tw.dtype(grade.element), np.random.default_rng(1), []
    for _ in range(1 + is_complex):
        base = (rng.standard_normal(shape) for shape in shapes)
        ranges = rng if data == "positive" else np.random.default_rng(2)
        parts.append([one.astype(kind.numpy) for one in DATA[data](ranges, *base, kind)])
    if not is_complex:
        return parts[0][0], parts[0][1]
    a, b = zip(*parts, strict=True)
    if kind in TOGETHER:
        a, b = (np.stack(one, -1).view(TOGETHER[kind])[..., 0] for one in (a, b))
    return a, b


def errors(a: Any, b: Any, made: Any, grade: Grade, is_complex: bool) -> tuple[float, float]:
    """Return the largest error over the sum of magnitudes, in units; and the error in Frobenius norm."""
    rows = ROWS[grade.bits]
    left, right, parts = (planes(x) if is_complex else (x,) for x in (a, b, made))
    left, right = ([x.astype(np.float64) for x in one] for one in ([x[:rows] for x in left], right))
    pairs = parts_of_product(left, right, np.concatenate) if is_complex else ((left[0], right[0]),)
    largest, off_squared, squared = 0.0, 0.0, 0.0
    for part, (x, y) in zip(parts, pairs, strict=True):
        off, exact = off_by(part[:rows].astype(np.float64), x, y, is_wide=grade.bits == 53)
        largest = max(largest, float((np.abs(off) / (np.abs(x) @ np.abs(y))).max() * 2.0**grade.bits))
        off_squared += float((off * off).sum())
        squared += float((exact * exact).sum())
    return largest, float(np.sqrt(off_squared / squared))


def ours(a: Any, b: Any, grade: Grade, target: str, is_complex: bool) -> Any:
    """Return the product of a grade."""
    schedule = grade.on_reference if target == "reference" else None
    words = {"precision": grade.precision, "schedule": schedule, "target": target}
    call = tw.complex_matmul if is_complex else tw.matmul
    if target != "cuda":
        return call(a, b, **words)
    there = [_moved(one, tw.testing.device_put, target) for one in (a, b, _blank(a, b))]
    call(*there[:2], out=there[2], **words)
    return _moved(there[2], tw.testing.device_get)


def _moved(given: Any, change: Callable[..., Any], *words: Any) -> Any:
    return tuple(change(one, *words) for one in given) if isinstance(given, tuple) else change(given, *words)


def _blank(a: Any, b: Any) -> Any:
    """Return a result filled with NaN."""
    if isinstance(a, tuple):
        return tuple(_blank(x, y) for x, y in zip(a, b, strict=True))
    return np.full((a.shape[0], b.shape[1]), np.nan, a.dtype)


def rival(a: Any, b: Any, grade: Grade, target: str) -> Any:
    """Return the result of another library; None if it has no such product."""
    if target == "cuda":
        return cublas(a, b, grade.rival) if grade.rival and not isinstance(a, tuple) else None
    is_known = target == "cpu" and not isinstance(a, tuple) and grade.element in ("f64", "f32", "f16")
    return a @ b if is_known and grade.precision == "exact" else None


def cublas(a: Any, b: Any, kind: str) -> Any:
    """``torch.mm``."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    left, right = (_tensor(np.ascontiguousarray(one)) for one in (a, b))
    made = torch.mm(left, right).cpu()
    return made.float().numpy() if made.dtype == torch.bfloat16 else made.numpy()


def _tensor(array: Any) -> Any:
    """Return a tensor on the GPU; PyTorch does not know NumPy's bf16."""
    import torch

    known = array.dtype.kind in "fc"
    return torch.from_numpy(array).cuda() if known else as_tensor(tw.testing.device_put(array, "cuda"))


def is_computed(grade: Grade, target: str) -> bool:
    """Whether a target really computes a grade, rather than another one in its place."""
    has_one = target == "cuda" or (target == "reference" and grade.on_reference is not None)
    return has_one or grade.element != "f32" or grade.precision == "exact"


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--target", choices=EXTENTS, default="cpu")
    asked = parser.parse_args()
    m, n, k = (32, 24, 64) if asked.quick else EXTENTS[asked.target]
    beside = "cuBLAS" if asked.target == "cuda" else "NumPy"
    lines, rows = [], []
    for grade in (grade for grade in (*REAL, *COMPLEX) if is_computed(grade, asked.target)):
        is_complex, found, theirs = grade in COMPLEX, {}, {}
        for data in DATA:
            a, b = drawn(data, ((m, k), (k, n)), grade, is_complex)
            found[data] = errors(a, b, ours(a, b, grade, asked.target, is_complex), grade, is_complex)
            if (made := rival(a, b, grade, asked.target)) is not None:
                theirs[data] = errors(a, b, made, grade, is_complex)
        about = {"grade": grade.name, "beside": beside, "extents": (m, n, k)}
        rows.append({**about, "ours": found, "rival": theirs})
        for name, numbers in ((grade.name, found), (f"  {beside}", theirs)):
            if numbers:
                lines.append((name, *(f"{numbers[x][0]:.3g} {numbers[x][1]:.1e}" for x in DATA)))
    print(table((f"{m} x {n} x {k}", *DATA), lines))
    keep(asked, "errors", asked.target, rows)


if __name__ == "__main__":
    main()
