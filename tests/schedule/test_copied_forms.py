"""Products of arrays that bulk copies cannot load: threads copy tiles, and K is split for few tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.eight_lines import product

import tilewright as tw
from tilewright.schedule.choice import choose
from tilewright.schedule.proposals_cuda import candidates
from tilewright.schedule.proposals_wgmma import MOST_COPIED, copied_forms
from tilewright.schedule.question import Question


def question(
    dtype: str, layout: str, shape: tuple[int, int, int], arch: str = "sm_90a", **more: Any
) -> Question:
    """Return the question of a product (M, K) @ (K, N); a letter for each operand: ``"n"`` is row-major."""
    asked = product.bind().question(*arrays(dtype, layout, shape, **more), target="cuda", arch=arch)
    assert asked is not None
    return asked


def arrays(dtype: str, layout: str, shape: tuple[int, int, int], align: int = 16) -> list[Any]:
    """Return the arrays A (M, K), B (N, K) and C (M, N)."""
    m, n, k = shape
    a = tw.like(dtype, m, k, order="C" if layout[0] == "n" else "F", align=align)
    b = tw.like(dtype, n, k, order="F" if layout[1] == "n" else "C", align=align)
    return [a, b, tw.like({"i8": "i32", "f8e4m3": "bf16"}.get(dtype, dtype), m, n)]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@pytest.mark.parametrize(
    ("dtype", "layout", "shape", "align"),
    [
        ("f16", "nn", (49, 19, 9161), 16),
        ("f16", "nt", (872, 29, 2183), 16),
        ("bf16", "tn", (1, 177, 4742), 16),
        ("bf16", "tt", (26, 316, 5954), 16),
        ("f16", "nn", (2966, 1, 6608), 16),
        ("f16", "nt", (64, 64, 8192), 2),
        ("i8", "nt", (333, 222, 4443), 16),
    ],
)
def test_few_tiles_of_odd_rows_split_k(
    dtype: str, layout: str, shape: tuple[int, int, int], align: int, arch: str
) -> None:
    """The chosen schedule fills the machine, compiles, and spills nothing."""
    asked = question(dtype, layout, shape, arch, align=align)
    chosen = choose(asked)
    assert chosen.split_k == "auto"
    assert chosen.staging in ("registers", "cp_async")
    made = product.bind(schedule=chosen).compile(
        *arrays(dtype, layout, shape, align), target="cuda", arch=arch
    )
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0


@pytest.mark.parametrize("shape", [(64, 64, 65536), (16, 4096, 4096), (1000, 1000, 1000), (4096, 4096, 4096)])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_aligned_rows_have_no_copied_forms(shape: tuple[int, int, int], layout: str) -> None:
    asked = question("f16", layout, shape)
    assert not [*copied_forms(asked)]
    assert all("threads copy" not in one.rule for one in candidates(asked))


def test_proposals_are_few_and_legal() -> None:
    found = [*copied_forms(question("bf16", "tt", (290, 111, 9543)))]
    assert 0 < len(found) <= MOST_COPIED
    assert len({one.schedule for one in found}) == len(found)
    estimates = [one.estimate * (1.02 if one.schedule.is_split else 1) for one in found]
    assert estimates == sorted(estimates)


@pytest.mark.parametrize(
    ("layout", "shape", "base"),
    [
        ("nn", (49, 19, 1031), 0),
        ("nt", (70, 29, 1033), 1),
        ("tn", (1, 77, 1142), 0),
        ("tt", (26, 67, 1030), 3),
        ("nn", (131, 1, 1100), 1),
        ("nt", (64, 64, 1024), 1),
    ],
)
def test_what_is_chosen_is_right(layout: str, shape: tuple[int, int, int], base: int) -> None:
    """The reference runs the chosen schedule: odd bases, NaN around the operands, results poisoned by NaN."""
    rng, (m, n, k) = np.random.default_rng(7), shape
    schedule = choose(question("f16", layout, (m, n, 8 * k), align=2 if base else 16))
    assert schedule.split_k == "auto"

    def laid(rows: int, along_k: bool) -> Any:
        whole = np.full(rows * k + base + 9, np.nan, np.float16)
        inside = whole[base : base + rows * k]
        inside[:] = rng.standard_normal(rows * k)
        return inside.reshape(rows, k) if along_k else inside.reshape(k, rows).T

    a, b = laid(m, layout[0] == "n"), laid(n, layout[1] == "t")
    out = np.full((m, n + 2), np.nan, np.float16)
    product.bind(schedule=schedule)(a, b, out[:, 1:-1], target="reference")
    wide = a.astype(np.float64), b.astype(np.float64)
    want, size = wide[0] @ wide[1].T, np.abs(wide[0]) @ np.abs(wide[1]).T
    bound = (k + 1) * 2.0**-23 * size + 2.0**-11 * np.abs(want) + 2.0**-25
    assert (np.abs(out[:, 1:-1] - want) <= bound).all()
    assert np.isnan(out[:, 0]).all()
    assert np.isnan(out[:, -1]).all()
