"""The kernels of the page for beginners compile for GPUs, and so do tiles of one element."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw

PAGE = (Path(__file__).parents[3] / "docs" / "first_kernels.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
MMA = tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2), repeats=(2, 4))

ARRAYS: dict[str, tuple[list[tuple[Any, ...]], dict[str, Any]]] = {
    "add": ([("f32", 3000)] * 3, {}),
    "row_mean": ([("f32", 7, 1000), ("f32", 7)], {}),
    "softmax": ([("f32", 13, 50)] * 2, {"columns": 64}),
    "transpose": ([("f32", 50, 70), ("f32", 70, 50)], {}),
    "linear": ([("f16", 100, 40), ("f16", 70, 40), ("f32", 70), ("f32", 100, 70)], {"mma": MMA}),
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("page") / "page.py"
    path.write_text("\n".join(block for block in BLOCKS if ">>>" not in block))
    names: dict[str, Any] = {"__name__": "page", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return names


@pytest.mark.parametrize("name", ARRAYS)
def test_a_first_kernel_compiles(name: str, kernels: dict[str, Any]) -> None:
    specimens, constants = ARRAYS[name]
    made = kernels[name].compile(*(tw.like(*s) for s in specimens), target="cuda", arch="sm_90a", **constants)
    assert made.target == "cuda"
    assert made.resources["registers"] > 0


def test_every_kernel_of_the_page_is_tried(kernels: dict[str, Any]) -> None:
    assert {name for name, value in kernels.items() if isinstance(value, tw.Kernel)} == set(ARRAYS)


@pytest.mark.parametrize("pad", [0, 1])
def test_a_tile_of_one_element_is_stored_where_it_exists(pad: int) -> None:
    """Whether it exists is known when the text is written; padding before the array never does."""

    @tw.kernel(X="M N", Y="M")
    def first(X, Y):
        m = tw.block_index(X.shape[0])
        x = tw.reduce_sum(tw.load(X.tile((1, 64), (m, 0)).partition(32)), 1)
        y = Y.tile((1,), (m,)).pad((pad,), (0,))
        tw.copy(x, y.tile((1,), (0,)).unmerge(0, (1, 1)))

    x, y = np.random.default_rng(0).standard_normal((13, 64)), np.full(13, np.nan)
    for target in ("reference", "cpu"):
        assert first(x, y, target=target).target == target
        assert np.isnan(y).all() if pad else np.allclose(y, x.sum(1), atol=1e-12)
    text = first.compile(x, y, target="cuda", arch="sm_80").source
    assert ("if (false)" in text) == bool(pad)
