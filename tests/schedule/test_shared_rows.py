"""Warps of a block share long rows that are reduced and stored: right, checked, and kept in registers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.lang import tile_arithmetic
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import CUDA

from . import whole_rows
from .folding import Array, FoldCase, U, poison, strided
from .test_folds import COMPILED, run


@tw.kernel(X="M N", weight="N", Y="M N", eps=tw.f32)
def rms_norm(X, weight, Y, eps=1e-5):
    for m in tw.tiles(Y.shape[0]):
        x = X[m].to(tw.f32)
        Y[m] = x * tw.rsqrt((x * x).sum(axis=1) / X.shape[1] + eps)[:, None] * weight


@tw.kernel(X="M N", weight="N", bias="N", Y="M N", mean="M", scale="M", eps=tw.f32)
def layer_norm(X, weight, bias, Y, mean, scale, eps=1e-5):
    """Three loops along a row: its mean, its variance, and the results."""
    for m in tw.tiles(mean):
        x = X[m].to(tw.f32)
        mu = x.sum(axis=1) / X.shape[1]
        far = x - mu[:, None]
        factor = tw.rsqrt((far * far).sum(axis=1) / X.shape[1] + eps)
        Y[m] = far * factor[:, None] * weight + bias
        mean[m], scale[m] = mu, factor


@tw.kernel(P="B M N", G="B M N", D="B M N")
def softmax_gradient(P, G, D):
    for b, m in tw.tiles(D.shape[:2], batch=1):
        p, g = P[b, m].to(tw.f32), G[b, m].to(tw.f32)
        D[b, m] = p * (g - (p * g).sum(axis=1)[:, None])


def wide(array: Array) -> Array:
    return array.astype(np.float64)


def case_of(name: str, M: int, N: int, kind: str = "f2", seed: int = 0) -> FoldCase:
    """Return a random problem with rows of N elements; its bound follows from sums of N terms in f32."""
    rng = np.random.default_rng(seed)
    u, sums = tw.dtype(np.dtype(kind)).unit_roundoff, (N + 32) * U
    x = (rng.standard_normal((M, N)) + 0.5).astype(kind)
    weight, bias = (rng.standard_normal(N).astype(kind) for _ in range(2))
    match name:
        case "softmax":
            x = (4 * x).astype(kind)
            power = np.exp2(wide(x) - wide(x).max(axis=1)[:, None])
            made = power / power.sum(axis=1)[:, None]
            room = (2 * sums + 2 * u) * made + 2.0**-25
            return FoldCase(
                whole_rows.normalised, {"X": x}, {"Y": poison(kind, M, N)}, {"Y": made}, {"Y": room}
            )
        case "RMSNorm":
            made = wide(x) / np.sqrt((wide(x) ** 2).mean(axis=1)[:, None] + 1e-5) * wide(weight)
            room = (sums + 2 * u) * np.abs(made) + 2.0**-24
            given = {"X": x, "weight": weight}
            return FoldCase(rms_norm, given, {"Y": poison(kind, M, N)}, {"Y": made}, {"Y": room})
        case "LayerNorm":
            mu, spread = wide(x).mean(axis=1), wide(x).var(axis=1) + 1e-5
            factor, far = 1 / np.sqrt(spread), wide(x) - mu[:, None]
            off = sums * np.abs(wide(x)).mean(axis=1)  # error of the mean
            made = far * factor[:, None] * wide(weight)
            lost = sums + 2 * u + 2 * off * factor
            room = lost[:, None] * (np.abs(made) + np.abs(wide(weight)) + np.abs(wide(bias))) + 2.0**-24
            return FoldCase(
                layer_norm,
                {"X": x, "weight": weight, "bias": bias},
                {"Y": poison(kind, M, N), "mean": poison("f4", M), "scale": poison("f4", M)},
                {"Y": made + wide(bias), "mean": mu, "scale": factor},
                {"Y": room, "mean": off + U, "scale": (lost + 8 * U) * factor},
            )
        case "softmax gradient":
            p, g = np.abs(x)[None], rng.standard_normal((1, M, N)).astype(kind)
            both = wide(p) * wide(g)
            made = wide(p) * (wide(g) - both.sum(axis=2, keepdims=True))
            room = wide(p) * (sums + u) * (np.abs(both).sum(axis=2, keepdims=True) + np.abs(wide(g)))
            return FoldCase(
                softmax_gradient,
                {"P": p, "G": g},
                {"D": poison("f4", 1, M, N)},
                {"D": made},
                {"D": room + u * np.abs(made) + 2.0**-24},
            )
    raise KeyError(name)


NAMES = ["softmax", "RMSNorm", "LayerNorm", "softmax gradient"]


def shared(
    warps: int, each: int, *, wide: int = 4, rows: int = 1, lanes: int = 32, **fields: Any
) -> Schedule:
    """The schedule with this number of warps for a row, and ``each`` accesses of a lane."""
    atom = tw.atoms.fma("f32", lanes=(1, lanes), each=(1, wide))
    return Schedule(atom, (rows, lanes * wide * warps * each, 1), (rows, warps), **fields)


WAYS = {
    "kept by 4 warps": shared(4, 2, fold="kept"),
    "kept by 2 warps, two rows": shared(2, 4, rows=2, fold="kept"),
    "kept by 16 warps": shared(16, 1, wide=2, fold="kept"),
    "kept by one warp": shared(1, 8, fold="kept"),
    "read again": shared(2, 1),
    "read again, two rows": shared(4, 1, wide=1, rows=2),
    "kept in parts": shared(2, 1, fold="kept", split_k="auto", blocks=40),
    "kept in parts of one warp": shared(1, 1, rows=2, fold="kept", split_k="auto", blocks=60),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", NAMES)
def test_every_form_of_schedule(name: str, way: str) -> None:
    """The reference finds races of all threads; 700 elements are no multiple of any tile."""
    for M, N, kind in ((5, 700, "f2"), (3, 1024, "f4")):
        case = case_of(name, M, N, kind)
        run(case, "reference", case.kernel.bind(schedule=WAYS[way]))


@pytest.mark.parametrize("name", NAMES)
def test_strides_and_poisoned_gaps(name: str) -> None:
    case = case_of(name, 4, 700)
    arrays = {key: one for key, one in case.given.items() if isinstance(one, np.ndarray) and one.ndim > 1}
    case.given.update({key: strided(one, 6) for key, one in arrays.items()})
    run(case, "reference", case.kernel.bind(schedule=WAYS["kept by 4 warps"]))
    run(case, "cpu")


@pytest.mark.parametrize("name", NAMES)
def test_long_rows_under_chosen_schedules(name: str) -> None:
    """Processors, and the choice for an H200 on the reference."""
    for M, N in ((7, 1500), (2, 5000)):
        case = case_of(name, M, N)
        run(case, "cpu")
        chosen = case.kernel.bind().schedule_for(**case.arguments(), target=CUDA.name, arch="sm_90a")
        assert chosen.warps[1] > 1
        run(case, "reference", case.kernel.bind(schedule=chosen))


@tw.kernel(X="M N", Y="M N", Z="M N", top="M")
def replaced(X, Y, Z, top):
    """Each result replaces an array that other results need, and three loops follow each other."""
    for m, n in tw.tiles(X):
        x, y, z = X[m, n], Y[m, n], Z[m, n]
        total = (x * y).sum(axis=1)
        high = (z + total[:, None]).max(axis=1)
        count = (x + y + z > high[:, None] - total[:, None]).sum(axis=1).to(tw.f32)
        X[m, n] = y + total[:, None]
        Y[m, n] = z - high[:, None] * x
        Z[m, n] = x + y + count[:, None]
        top[m] = high


@pytest.mark.parametrize(
    "way", [None, "kept by 4 warps", "kept by 2 warps, two rows", "read again", "kept in parts"]
)
def test_results_that_replace_their_inputs(way: str | None) -> None:
    rng = np.random.default_rng(1)
    for M, N in ((3, 700), (2, 1), (1, 1000)):
        x, y, z = rng.integers(-3, 4, (3, M, N)).astype("f4")
        total = (x * y).sum(1)[:, None]
        high = (z + total).max(1)[:, None]
        count = (x + y + z > high - total).sum(1)[:, None]
        given = x.copy(), y.copy(), z.copy(), poison("f4", M)
        if way is None:
            replaced(*given, target="cpu")
        else:
            replaced.bind(schedule=WAYS[way])(*given, target="reference")
        exact = y + total, z - high * x, x + y + count, high[:, 0]
        assert all((found == one).all() for found, one in zip(given, exact, strict=True))


def test_a_dropped_element_is_beyond_the_bound() -> None:
    for name in NAMES:
        case = case_of(name, 5, 700)
        whole = {key: one.astype(np.float64) for key, one in case.expected.items()}
        assert case.wrong(whole) == []
        first = next(iter(whole))
        whole[first][..., 699] = 0
        assert case.wrong(whole)


# ---------------------------------------------------------------- hazards


@pytest.mark.parametrize("way", ["kept by 4 warps", "read again", "kept in parts"])
def test_the_checker_has_no_findings(way: str) -> None:
    case = case_of("LayerNorm", 3, 700)
    kernel = case.kernel.bind(schedule=WAYS[way])
    assert not kernel.check(**case.arguments(), outputs=tuple(case.results)).findings


def test_the_checker_finds_warps_that_do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the barriers of a reduction, a warp reads the sums of others too early, or overwrites them."""
    case = case_of("LayerNorm", 3, 700)
    kernel = case.kernel.bind(schedule=WAYS["kept by 4 warps"])
    kernel.forget()
    monkeypatch.setattr(tile_arithmetic, "meeting", lambda *given: lambda: None)
    assert kernel.check(**case.arguments(), outputs=tuple(case.results)).findings
    kernel.forget()


# ---------------------------------------------------------------- the choice


@pytest.mark.parametrize(
    ("M", "N", "tile", "warps", "fold"),
    [
        (4096, 1024, (4, 1024, 1), (4, 1), "kept"),
        (4096, 4096, (1, 4096, 1), (1, 4), "kept"),
        (4096, 5000, (1, 5120, 1), (1, 4), "kept"),
        (4096, 16384, (1, 16384, 1), (1, 8), "kept"),
        (4096, 65536, (1, 8192, 1), (1, 8), "online"),
        (100, 4096, (1, 4096, 1), (1, 8), "kept"),
        (16, 65536, (1, 8192, 1), (1, 16), "kept"),
    ],
)
def test_the_choice(M: int, N: int, tile: tuple[int, int, int], warps: tuple[int, int], fold: str) -> None:
    """Warps share a row that is too long for one; few rows have more warps, or a block for each part."""
    arrays = tw.like("bf16", M, N), tw.like("bf16", N), tw.like("bf16", M, N)
    made = rms_norm.bind().schedule_for(*arrays, target=CUDA.name, arch="sm_90a")
    assert (made.tile, made.warps, made.fold) == (tile, warps, fold)
    assert made.is_split == (M == 16)


def test_rows_of_several_arrays_have_fewer_elements_in_registers() -> None:
    """Four arrays of one row are kept: a lane has 32 elements of each, and 16 warps are too many."""

    @tw.kernel(A="M N", B="M N", C="M N", D="M N", Y="M N")
    def four(A, B, C, D, Y):
        for m in tw.tiles(Y.shape[0]):
            total = A[m].to(tw.f32) + B[m].to(tw.f32) * C[m].to(tw.f32) + D[m].to(tw.f32)
            Y[m] = total + A[m].to(tw.f32) * total.sum(axis=1)[:, None] * D[m].to(tw.f32)

    for N, fold in ((8192, "kept"), (16384, "online")):
        arrays = [tw.like("bf16", 4096, N) for _ in range(5)]
        made = four.compile(*arrays, target=CUDA.name, arch="sm_90a")
        assert made.schedule is not None
        assert (made.schedule.fold, made.resources["spill_store_bytes"]) == (fold, 0)


@pytest.mark.parametrize(("target", "arch"), COMPILED)
def test_gpus_compile_without_spills(target: str, arch: str) -> None:
    for name, N in (("LayerNorm", 4096), ("softmax gradient", 16384), ("softmax", 40000)):
        case = case_of(name, 300, N)
        made = case.kernel.compile(**case.arguments(), target=target, arch=arch)
        assert made.schedule is not None
        assert made.schedule.warps[1] > 1
        spilled = "spilled_registers" if target == "hip" else "spill_store_bytes"
        assert made.resources[spilled] == made.resources["stack_bytes"] == 0


def test_sums_of_columns_and_products_are_not_shared() -> None:
    case = dict(whole_rows.cases(19))["softmax, f2, K = 24"]
    way = shared(2, 1, wide=1, fold="kept")
    with pytest.raises(tw.ScheduleError, match=r"(?s)each warp has whole rows.*warps=\(2, 1\)"):
        run(case, "reference", case.kernel.bind(schedule=way))
    case = dict(whole_rows.cases(19))["moments"]
    with pytest.raises(tw.ScheduleError, match=r"(?s)whole rows, because no result.*warps=\(2, 1\)"):
        run(case, "reference", case.kernel.bind(schedule=shared(2, 1)))


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_on_a_gpu(name: str) -> None:
    """Chosen schedules and every form; numbers between the rows of a result keep their bits."""
    for M, N, kind in ((7, 700, "f2"), (300, 4100, "f2"), (150, 20000, "f2"), (5, 50000, "f4")):
        case = case_of(name, M, N, kind, seed=N)
        ways = [WAYS[way] for way in WAYS if N == 700] or [None]
        for way in ways:
            kernel = case.kernel if way is None else case.kernel.bind(schedule=way)
            given = case.arguments(DeviceArray.of)
            assert kernel(**given).target == CUDA.name
            CUDA_DRIVER.synchronize()
            assert case.wrong({one: given[one].host() for one in case.results}) == []
