"""Products over one tiled dimension: matrix by vector, vector by matrix, two vectors; in batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.flows import compare_flow

from .forms import FORMS

Arrays = dict[str, np.ndarray[Any, Any]]


@tw.kernel(A="M K", x="K", bias="M", y="M", alpha=tw.f32)
def by_vector(A, x, bias, y, alpha=0.5):
    for m in tw.tiles(y):
        acc = tw.zeros()
        for k in tw.steps(x.shape[0]):
            acc += A[m, k] @ x[k]
        y[m] = tw.maximum(alpha * acc + bias[m], tw.positions(m).to(tw.f32))


@tw.kernel(A="K N", x="K", y="N")
def of_vector(A, x, y):
    for n in tw.tiles(y):
        acc = tw.zeros()
        for k in tw.steps(x.shape[0]):
            acc += tw.relu(x[k]) @ A[k, n]
        y[n] = acc + y[n]


@tw.kernel(x="K", z="K", y="M")
def dots(x, z, y):
    """The product of two vectors, for every element of the result."""
    for m in tw.tiles(y):
        acc = tw.zeros()
        for k in tw.steps(x.shape[0]):
            acc += x[k] @ z[k]
        y[m] = acc


@tw.kernel(A="B M K", x="B K", y="B M")
def in_batches(A, x, y):
    for b, m in tw.tiles(y, batch=1):
        acc = tw.zeros()
        for k in tw.steps(x.shape[1]):
            acc += A[b, m, k] @ x[b, k]
        y[b, m] = acc


@tw.kernel(A="T K", x="K", z="K", rows="M", y="M")
def of_chosen_rows(A, x, z, rows, y):
    """Subtract two products of rows that integers choose."""
    for m in tw.tiles(y):
        acc = tw.zeros()
        for k in tw.steps(x.shape[0]):
            chosen = A.rows(rows, padded=True)[m, k]
            acc += chosen @ x[k] - z[k] @ chosen.T
        y[m] = acc


@tw.kernel(A="M K", x="K", W="B K", total="B M")
def reduced(A, x, W, total):
    for b, m in tw.tiles(total, batch=1):
        acc = tw.zeros()
        for k in tw.steps(x.shape[0]):
            acc += A[m, k] @ (x[k] * W[b, k])
        total[b, m] = acc - acc.max(axis=0)


KERNELS = {
    "by_vector": (by_vector, "A M K, x K, bias M, y M"),
    "of_vector": (of_vector, "A K N, x K, y N"),
    "dots": (dots, "x K, z K, y M"),
    "in_batches": (in_batches, "A B M K, x B K, y B M"),
    "of_chosen_rows": (of_chosen_rows, "A T K, x K, z K, rows M, y M"),
}

EXTENTS = (1, 3, 17, 33, 40, 70, 128, 264)


def problem(name: str, seed: int, dtype: str) -> Arrays:
    """Return random arrays of a kernel; matrices have a gap after each row, or are transposed."""
    draw = np.random.default_rng(seed)
    sizes = {dim: int(draw.choice(EXTENTS)) for dim in "MNKT"} | {"B": 3}
    made: Arrays = {}
    for text in KERNELS[name][1].split(", "):
        array, *dims = text.split()
        shape = [sizes[dim] for dim in dims]
        if array == "rows":
            made[array] = draw.integers(-2, sizes["T"] + 2, shape).astype(np.int64)
        elif array == "y":
            made[array] = draw.standard_normal(shape).astype(np.float32)
        else:
            gap = int(draw.choice([0, 0, 8, 3]))
            whole = draw.standard_normal([*shape[:-1], shape[-1] + gap]).astype(tw.dtype(dtype).numpy)
            made[array] = whole[..., : shape[-1]]
    return made


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", KERNELS)
def test_random_problems(name: str, target: str, seed: int) -> None:
    arrays = problem(name, seed, ("f32", "f16", "bf16")[seed % 3])
    before = {key: array.copy() for key, array in arrays.items()}
    larger = np.full((*arrays["y"].shape[:-1], arrays["y"].shape[-1] + 5), 99, np.float32)
    larger[..., :-5] = arrays["y"]
    arrays["y"] = larger[..., :-5]
    launch = KERNELS[name][0](*arrays.values(), target=target)
    assert launch.target == target
    found = compare_flow(launch.flow, {"y": np.ascontiguousarray(arrays["y"])}, before, {"alpha": 0.5})
    assert found.ok, found
    assert (larger[..., -5:] == 99).all()


@tw.kernel(A="M K", x="K N", y="M N")
def by_column(A, x, y):
    for m, n in tw.tiles(y):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ x[k, n]
        y[m, n] = acc


@tw.kernel(A="M K", x="K", y="M")
def plain(A, x, y):
    for m in tw.tiles(y):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ x[k]
        y[m] = acc


@pytest.mark.parametrize("form", [name for name, schedule in FORMS.items() if not schedule.by_bulk])
def test_a_vector_is_a_matrix_of_one_column(form: str) -> None:
    draw = np.random.default_rng(2)
    a, x = (draw.standard_normal(shape).astype(np.float16) for shape in ((70, 100), 100))
    y, expected = (np.full(70, np.nan, np.float32) for _ in range(2))
    assert plain.bind(schedule=FORMS[form])(a, x, y, target="reference").schedule == FORMS[form]
    by_column.bind(schedule=FORMS[form])(a, x[:, None], expected[:, None], target="reference")
    assert np.array_equal(y.view(np.int32), expected.view(np.int32))


def test_a_reduction_along_the_only_dimension() -> None:
    draw = np.random.default_rng(3)
    a, x, w = (draw.standard_normal(shape).astype(np.float32) for shape in ((20, 30), 30, (2, 30)))
    total = np.full((2, 20), np.nan, np.float32)
    flow = reduced(a, x, w, total, target="cpu").flow
    found = compare_flow(flow, {"total": total}, {"A": a, "x": x, "W": w})
    assert found.ok, found


@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_90a"), ("cuda", "sm_80"), ("hip", "gfx942")])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_rows_of_the_matrix_are_copied_16_bytes_at_a_time(target: str, arch: str, dtype: str) -> None:
    args = [tw.like(dtype, (4096, 4096)), *[tw.like(dtype, (4096,))] * 2]
    made = plain.compile(*args, target=target, arch=arch)
    schedule = plain.bind().schedule_for(*args, target=target, arch=arch)
    if target == "cuda":
        assert schedule.staging == "cp_async"
        assert "copy_async<16>" in made.source
    if arch == "sm_90a":
        assert schedule.is_split


def test_three_tiled_dimensions_are_refused() -> None:
    @tw.kernel(A="M K", x="N K", y="B M N")
    def three(A, x, y):
        for b, m, n in tw.tiles(y, batch=0):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ x[n, k].T
            y[b, m, n] = acc

    a, x, y = (np.ones(shape, np.float32) for shape in ((3, 4), (5, 4), (2, 3, 5)))
    with pytest.raises(tw.TraceError, match=r"over 3 tiled dimensions; .*another batch= of tw.tiles"):
        three(a, x, y, target="cpu")
