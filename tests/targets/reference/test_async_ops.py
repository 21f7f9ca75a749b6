"""The meaning of roles, transaction barriers, bulk copies and asynchronous MMA equals NumPy's."""

from __future__ import annotations

import numpy as np
import pytest
from tests.windows import window

import tilewright as tw
from tilewright.dtypes import dtype
from tilewright.errors import LegalityError
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec
from tilewright.targets.reference import Kind, run

MOVE = {"X": "M N", "Y": "P Q"}
GEMM = {"A": "M K", "B": "N K", "C": "M N"}


def spec(array):
    strides = [stride // array.itemsize for stride in array.strides]
    return TensorSpec(dtype(array.dtype), array.ndim, 1, (1, 1), (max(strides[0], 1), 1), 16, False)


def traced(function, declared, arrays, **constants):
    return Program(function, declared).trace({name: spec(a) for name, a in arrays.items()}, constants)


def launch(function, declared, arrays, **constants):
    report = run(traced(function, declared, arrays, **constants), arrays)
    report.raise_if_any()
    return report


def square(rows=64, columns=64, element="f16"):
    rng = np.random.default_rng(rows * columns)
    return rng.integers(-8, 9, (rows, columns)).astype(dtype(element).numpy)


# ---------------------------------------------------------------- roles and barriers


def halves(X, Y, *, warps):
    with tw.role(warps=warps[0]):
        tw.copy(X.tile((32, 64), (0, 0)), Y.tile((32, 64), (1, 0)), threads=(8, 4 * warps[0]), vector_dim=1)
    with tw.role(warps=warps[1]):
        tw.copy(X.tile((32, 64), (1, 0)), Y.tile((32, 64), (0, 0)), threads=(8, 4 * warps[1]), vector_dim=1)


@pytest.mark.parametrize("warps", [(1, 1), (1, 2), (4, 2)])
def test_threads_of_a_role_count_from_its_first(warps) -> None:
    x, y = square(), np.zeros((64, 64), np.float16)
    launch(halves, MOVE, {"X": x, "Y": y}, warps=warps)
    assert (y == np.concatenate([x[32:], x[:32]])).all()


def quarters(X, Y):
    with tw.role(warps=3), tw.role(warps=1):
        tw.copy(X.tile((16, 64), (0, 0)), Y.tile((16, 64), (3, 0)), threads=(8, 4))
    with tw.role(warps=4):
        with tw.role(warps=1):
            tw.copy(X.tile((16, 64), (1, 0)), Y.tile((16, 64), (2, 0)), threads=(8, 4))
        with tw.role(warps=3), tw.role(warps=2):
            tw.copy(X.tile((32, 64), (1, 0)), Y.tile((32, 64), (0, 0)), threads=(16, 4))


def test_threads_of_an_inner_role_count_from_its_first() -> None:
    x, y = square(), np.zeros((64, 64), np.float16)
    launch(quarters, MOVE, {"X": x, "Y": y})
    assert (y == np.concatenate([x[32:], x[16:32], x[:16]])).all()


def neighbours(X, Y):
    """Each inner role waits for the other's arrival: they run at the same time, or never end."""
    there, back = tw.hopper.mbarrier(1, arrivals=1), tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    with tw.role(warps=2):
        with tw.role(warps=1):
            tw.hopper.arrive(there[0])
            tw.hopper.wait(back[0], 0)
        with tw.role(warps=1):
            tw.hopper.wait(there[0], 0)
            tw.hopper.arrive(back[0])


def test_inner_roles_run_at_the_same_time() -> None:
    launch(neighbours, MOVE, {"X": square(), "Y": square()})


def test_an_inner_role_must_lie_in_its_role() -> None:
    def kernel(X, Y):
        with tw.role(warps=4), tw.role(warps=5):
            pass

    arrays = {"X": square(), "Y": square()}
    with pytest.raises(LegalityError, match="role: warps 0 to 4 of the 4 warps of the role"):
        run(traced(kernel, MOVE, arrays), arrays)


def ring(X, Y, *, stages, each):
    """One role fills stages and the other empties them, by ordinary copies only."""
    held = tw.shared((stages, 8, 64), X.dtype)
    count = 2 if each == "warp" else 1
    full, empty = tw.hopper.mbarrier(stages, arrivals=count), tw.hopper.mbarrier(stages, arrivals=count)
    tiles = tw.ceil_div(X.shape[0], 8)
    tw.barrier()
    with tw.role(warps=2):
        for t in tw.range(tiles):
            tw.hopper.wait(empty[t % stages], 1 - t // stages % 2)
            tw.copy(X.tile((8, 64), (t, 0)), held[t % stages], threads=(2, 32))
            if each == "role":
                tw.role_barrier(1, 64)
            tw.hopper.arrive(full[t % stages], each=each)
    with tw.role(warps=2):
        for t in tw.range(tiles):
            tw.hopper.wait(full[t % stages], t // stages % 2)
            tw.copy(held[t % stages], Y.tile((8, 64), (t, 0)), threads=(2, 32))
            if each == "role":
                tw.role_barrier(2, 64)
            tw.hopper.arrive(empty[t % stages], each=each)


@pytest.mark.parametrize("each", ["warp", "role"])
@pytest.mark.parametrize(("stages", "tiles"), [(1, 4), (2, 7), (3, 7), (4, 1), (2, 0)])
def test_phases_of_a_ring_alternate(stages, tiles, each) -> None:
    x = square(8 * tiles)
    y = np.zeros_like(x)
    launch(ring, MOVE, {"X": x, "Y": y}, stages=stages, each=each)
    assert (y == x).all()


def turned(X, Y, *, numbers):
    held = tw.shared((2, 64, 64), X.dtype)
    for pair in range(2):
        with tw.role(warps=2):
            tw.copy(X.tile((64, 64), (pair, 0)), held[pair], threads=(64, 1))
            tw.role_barrier(numbers[pair], 64)
            tw.copy(held[pair].permute(1, 0), Y.tile((64, 64), (pair, 0)), threads=(64, 1))


def test_numbered_barriers_are_of_those_who_name_them() -> None:
    x, y = square(128), np.zeros((128, 64), np.float16)
    launch(turned, MOVE, {"X": x, "Y": y}, numbers=(1, 7))
    assert (y == np.concatenate([x[:64].T, x[64:].T])).all()


def test_a_role_must_lie_in_its_block() -> None:
    arrays = {"X": square(), "Y": np.zeros((64, 64), np.float16)}
    kernel = traced(halves, MOVE, arrays, warps=(2, 2))
    with pytest.raises(LegalityError, match="role: warps 2 to 3 of the 2 warps of the block"):
        run(kernel, arrays, lanes=64)


# ---------------------------------------------------------------- bulk copies


def load_box(X, Y, *, at, columns):
    held = tw.shared((64, columns), X.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    with tw.role(warps=1):
        tw.hopper.arrive(full[0], expect_bytes=64 * columns * X.dtype.bytes)
        tw.hopper.tma_load(window(X, held.shape, at), held, full[0])
    with tw.role(warps=1):
        tw.hopper.wait(full[0], 0)
        tw.copy(held, Y.tile((64, columns), (0, 0)), threads=(32, 1))


def boxed(x, at, shape):
    """Cut out the box with NumPy, with zeros outside."""
    whole = np.zeros(shape, x.dtype)
    for row in range(shape[0]):
        for column in range(shape[1]):
            place = at[0] + row, at[1] + column
            if 0 <= place[0] < x.shape[0] and 0 <= place[1] < x.shape[1]:
                whole[row, column] = x[place]
    return whole


BOXES = [(0, 0), (8, 16), (-8, -24), (100, 40), (70, 88), (-64, 0), (500, 0)]


@pytest.mark.parametrize("at", BOXES)
@pytest.mark.parametrize("element", ["f16", "f32"])
def test_a_load_brings_a_box_and_zeros_outside(at, element) -> None:
    columns = 128 // dtype(element).bytes
    x = square(110, 96, element)
    y = np.full((64, columns), 77, x.dtype)
    launch(load_box, MOVE, {"X": x, "Y": y}, at=at, columns=columns)
    assert (y == boxed(x, at, (64, columns))).all()


def store_box(X, Y, *, at):
    held = tw.shared((64, 64), X.dtype, swizzle=128)
    with tw.role(warps=2):
        tw.copy(X.tile((64, 64), (0, 0)), held, threads=(64, 1))
        tw.hopper.fence_async()
        tw.role_barrier(1, 64)
        tw.hopper.tma_store(held, window(Y, held.shape, at))
        tw.hopper.bulk_commit()
        tw.hopper.bulk_wait()


@pytest.mark.parametrize("at", [at for at in BOXES if min(at) < 0])
def test_a_store_before_the_target_is_found(at) -> None:
    """A GPU stops with an illegal instruction."""
    arrays = {"X": square(), "Y": np.full((110, 96), 77, np.float16)}
    report = run(traced(store_box, MOVE, arrays, at=at), arrays)
    [found] = report.findings
    assert found.kind is Kind.OUT_OF_BOUNDS
    assert f"a store by TMA begins at {at}, before the tensor" in found.reason


@pytest.mark.parametrize("at", [at for at in BOXES if min(at) >= 0])
def test_a_store_writes_what_the_target_has(at) -> None:
    x, y = square(), np.full((110, 96), 77, np.float16)
    launch(store_box, MOVE, {"X": x, "Y": y}, at=at)
    expected = np.full((110, 96), 77, np.float16)
    for row, column in np.ndindex(64, 64):
        place = at[0] + row, at[1] + column
        if 0 <= place[0] < 110 and 0 <= place[1] < 96:
            expected[place] = x[row, column]
    assert (y == expected).all()


def two_buffers(X, Y):
    """There are two buffers; the last store may be unfinished when the other buffer is written again."""
    held = tw.shared((2, 8, 64), X.dtype, swizzle=128)
    with tw.role(warps=1):
        for t in tw.range(tw.ceil_div(X.shape[0], 8)):
            tw.hopper.bulk_wait(1)
            tw.warp_barrier()
            tw.copy(X.tile((8, 64), (t, 0)), held[t % 2], threads=(8, 4))
            tw.hopper.fence_async()
            tw.warp_barrier()
            tw.hopper.tma_store(held[t % 2], Y.tile((8, 64), (t, 0)))
            tw.hopper.bulk_commit()
        tw.hopper.bulk_wait(0)


@pytest.mark.parametrize("tiles", [0, 1, 5])
def test_groups_of_stores_are_waited_for_in_order(tiles) -> None:
    x = square(8 * tiles)
    y = np.zeros_like(x)
    launch(two_buffers, MOVE, {"X": x, "Y": y})
    assert (y == x).all()


def rereleased(X, Y, *, tiles):
    """TMA fills a stage, ordinary copies read it with a fence, and TMA fills it again."""
    held = tw.shared((8, 64), X.dtype, swizzle=128)
    full, empty = tw.hopper.mbarrier(1, arrivals=1), tw.hopper.mbarrier(1, arrivals=2)
    tw.barrier()
    with tw.role(warps=1):
        for t in tw.range(tiles):
            tw.hopper.wait(empty[0], 1 - t % 2)
            tw.hopper.arrive(full[0], expect_bytes=1024)
            tw.hopper.tma_load(X.tile((8, 64), (t, 0)), held, full[0])
    with tw.role(warps=2):
        for t in tw.range(tiles):
            tw.hopper.wait(full[0], t % 2)
            tw.copy(held, Y.tile((8, 64), (t, 0)), threads=(8, 8))
            tw.hopper.fence_async()
            tw.hopper.arrive(empty[0], each="warp")


def test_what_was_read_by_copies_is_overwritten_after_a_fence() -> None:
    x, y = square(40), np.zeros((40, 64), np.float16)
    launch(rereleased, MOVE, {"X": x, "Y": y}, tiles=5)
    assert (y == x).all()


# ---------------------------------------------------------------- asynchronous MMA


def multiply(A, B, C, *, mma, registers, groups):
    m, n, _ = mma.tile
    sA = tw.shared((groups, m, 64), A.dtype, swizzle=128)
    sB = tw.shared((groups, n, 64), B.dtype, swizzle=128)
    for k in range(groups):
        tw.copy(A.tile((m, 64), (0, k)), sA[k], threads=(mma.threads // 8, 8))
        tw.copy(B.tile((n, 64), (0, k)), sB[k], threads=(mma.threads // 8, 8))
    tw.hopper.fence_async()
    tw.barrier()
    acc = tw.accumulator(mma, fill=1)
    a = [tw.load(sA[k], mma.a(64)) if registers else sA[k] for k in range(groups)]
    tw.hopper.mma_fence()
    for k in range(groups):
        tw.hopper.mma_async(a[k], sB[k], acc, mma)
        tw.hopper.mma_commit()
    tw.hopper.mma_wait(0)
    tw.copy(acc, C.tile((m, n), (0, 0)))


SHAPES = {
    "one warpgroup": ((1, 1), (1, 1), 64),
    "two along M": ((2, 1), (1, 1), 64),
    "two along N": ((1, 2), (1, 1), 32),
    "four": ((2, 2), (1, 1), 64),
    "repeated": ((1, 1), (2, 2), 32),
    "repeated, two along M": ((2, 1), (2, 1), 64),
}


@pytest.mark.parametrize("registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("name", SHAPES)
def test_products_of_warpgroups(name, element, registers) -> None:
    warps, repeats, columns = SHAPES[name]
    mma = tw.TiledMma(tw.atoms.wgmma(dtype(element), columns), warps, repeats)
    m, n, _ = mma.tile
    a, b, c = square(m, 128, element), square(n, 128, element), np.zeros((m, n), np.float32)
    launch(multiply, GEMM, {"A": a, "B": b, "C": c}, mma=mma, registers=registers, groups=2)
    assert (c == 1 + a.astype(np.float32) @ b.astype(np.float32).T).all()


def test_asynchronous_products_need_warps_that_fit_a_warpgroup() -> None:
    mma = tw.TiledMma(tw.atoms.wgmma(tw.f16, 64), (1, 1))
    arrays = {"A": square(), "B": square(), "C": np.zeros((64, 64), np.float32)}
    kernel = traced(multiply, GEMM, arrays, mma=mma, registers=False, groups=1)
    with pytest.raises(LegalityError, match="is executed by 128 threads"):
        run(kernel, arrays, lanes=24)
