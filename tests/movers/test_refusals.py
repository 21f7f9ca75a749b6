"""Refusals of wrong reuse, wrong register tiles, cut edges, narrow sums and stores."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.sample import operands
from tilewright.errors import LegalityError
from tilewright.inspect.report import resources
from tilewright.tune.trial import Trial

pytestmark = pytest.mark.in_turns(3)

EXAMPLES = Path(__file__).parents[2] / "examples"
WARP_TILES = runpy.run_path(str(EXAMPLES / "06_warp_tiles_gemm.py"))
LEVELS = runpy.run_path(str(EXAMPLES / "07_three_levels_gemm.py"))
MMA = tw.TiledMma(tw.atoms.MMA_F16, (2, 2), (4, 4))


@tw.kernel(A="M K", B="N K", C="M N")
def one_step(A, B, C, *, part_a, part_b, mma):
    tw.block_index(1)
    acc = tw.accumulator(mma)
    rA = tw.load(A.tile(part_a.shape, (0, 0)), part_a)
    rB = tw.load(B.tile(part_b.shape, (0, 0)), part_b)
    tw.mma(rA, rB, acc)
    tw.copy(acc, C.tile(mma.tile[:2], (0, 0)))


PART_A = tw.by_warps((128, 32), MMA.atom.a, (2, 2), reuse="row")
PART_B = tw.by_warps((64, 32), MMA.atom.b, (2, 2), reuse="column", along=0)


def arrays():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((rows, 32)).astype(np.float16) for rows in (128, 64))
    return a, b, np.full((128, 64), np.nan, np.float16)


def test_the_right_reuse_multiplies() -> None:
    a, b, c = arrays()
    one_step(a, b, c, part_a=PART_A, part_b=PART_B, mma=MMA, target="reference")
    np.testing.assert_allclose(c, a.astype(np.float32) @ b.T.astype(np.float32), atol=0.05)


@pytest.mark.parametrize(
    ("part_a", "part_b", "says", "nearest"),
    [
        (
            PART_A,
            tw.by_warps((64, 32), MMA.atom.b, (2, 2), reuse="row"),
            "operand B of mma.m16n8k16.f32.f16: the warps of a column of the 2x2 grid hold the same rows",
            "tw.operand_b(mma, 32)",
        ),
        (
            tw.by_warps((128, 32), MMA.atom.a, (2, 2), reuse="column", along=0),
            PART_B,
            "operand A of mma.m16n8k16.f32.f16: the warps of a row of the 2x2 grid hold the same rows",
            "tw.operand_a(mma, 32)",
        ),
        (tw.by_warps((128, 32), MMA.atom.a, (2, 2)), PART_B, "operand A", "tw.operand_a(mma, 32)"),
    ],
)
def test_a_reuse_mode_that_is_not_the_operands_is_refused(part_a, part_b, says, nearest) -> None:
    a, b, c = arrays()
    with pytest.raises(LegalityError) as raised:
        one_step(a, b, c, part_a=part_a, part_b=part_b, mma=MMA, target="reference")
    assert says in str(raised.value)
    assert nearest in str(raised.value)
    assert np.isnan(c.astype(np.float32)).all()


@pytest.mark.parametrize("repeats", [(8, 8), (4, 8)])
def test_repeats_that_do_not_fit_the_tiles_are_refused_with_the_right_ones(repeats) -> None:
    a, b, c = arrays()
    wrong = tw.TiledMma(tw.atoms.MMA_F16, (2, 2), repeats)
    with pytest.raises(LegalityError, match=r"repeats=\(4, 4\)"):
        one_step(a, b, c, part_a=PART_A, part_b=PART_B, mma=wrong, target="reference")


BOUND = {
    "warp tiles": lambda: WARP_TILES["BOUND"][tw.f16],
    **{level.name: (lambda level=level: LEVELS["bind"](level)) for level in LEVELS["LEVELS"]},
}


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", BOUND)
@pytest.mark.parametrize("shape", [(40, 24, 1000), (129, 65, 31), (1, 1, 1)])
def test_a_ragged_k_is_never_truncated(name, shape) -> None:
    """K = 1000 in tiles of 32: the last 8 count. Integers compare exactly, on both targets."""
    for target in ("reference", "cpu"):
        bound = BOUND[name]()
        made = operands("integers", tw.f16, shape, layout="nt")
        trial = Trial(bound, made, target, bound.constants["mma"].atom, name)
        assert trial.run()[0].target == target
        trial.verify().raise_if_wrong()


@tw.kernel(X="M N", Y="M N")
def through_registers(X, Y, *, part, mma):
    """Y = X, from registers to shared memory in the element type and back."""
    tw.block_index(1)
    held = tw.shared(part.shape, Y.dtype)
    tw.copy(tw.load(X.tile(part.shape, (0, 0)), part), held)
    tw.barrier()
    tw.copy(tw.load(held, part), Y.tile(part.shape, (0, 0)))
    del mma


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f8e4m3", "f8e5m2", "i8", "f32", "c32", "c64"])
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_registers_to_shared_memory_in_every_dtype(dtype, arch) -> None:
    element = tw.dtype(dtype)
    part = tw.by_warps((64, 32), MMA.atom.c, (2, 2))
    spec = tw.TensorSpec(element, 2, 1, (64, 32), (32, 1), 16, False)
    compiled = through_registers.compile(spec, spec, part=part, mma=MMA, target="cuda", arch=arch)
    assert compiled.target == "cuda"
    bits = np.random.default_rng(1).integers(0, 256, 64 * 32 * element.bytes, np.uint8)
    x = np.frombuffer(bits.tobytes(), element.numpy).reshape(64, 32)
    for target in ("reference", "cpu"):
        y = np.zeros_like(x)
        through_registers(x, y, part=part, mma=MMA, target=target)
        assert y.tobytes() == x.tobytes()


def test_an_f16_accumulator_stays_within_its_fragment() -> None:
    """Two 16-bit sums share a register: the fragment has exactly as many as the atom writes."""
    atom = tw.atoms.MMA_F16_F16
    assert (atom.c.size_values, atom.c_dtype) == (4, tw.f16)
    bound = WARP_TILES["warp_tiles_gemm"].bind(tile=(64, 64, 32), mma=tw.TiledMma(atom, (2, 2), (2, 4)))
    for target in ("reference", "cpu"):
        trial = Trial(bound, operands("integers", tw.f16, (70, 65, 67), layout="nt"), target, atom, "f16")
        assert trial.run()[0].target == target
        trial.verify().raise_if_wrong()
    spec = tw.TensorSpec(tw.f16, 2, 1, (64, 64), (64, 1), 16, False)
    source = bound.compile(spec, spec, spec, target="cuda", arch="sm_80").source
    assert "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16" in source
    assert "half_t acc[32]" in source


@tw.kernel(X="M N", Y="M N")
def too_narrow(X, Y, *, columns):
    tw.block_index(1)
    strides = (1, 64) if columns else (32, 1)
    held = tw.shared((64, 32), X.dtype, layout=tw.Layout((64, 32), strides))
    tw.copy_async(X.tile((64, 32), (0, 0)), held, threads=(32, 1))
    tw.async_commit()
    tw.async_wait(0)
    tw.barrier()
    tw.copy(held, Y.tile((64, 32), (0, 0)), threads=(32, 1))


@pytest.mark.parametrize(("dtype", "bytes_"), [("f16", 2), ("i8", 1)])
def test_a_copy_too_narrow_for_the_background_says_that_it_is_done_at_once(dtype, bytes_) -> None:
    element = tw.dtype(dtype)
    spec = tw.TensorSpec(element, 2, 1, (64, 32), (32, 1), 16, False)
    texts = {
        columns: too_narrow.compile(spec, spec, columns=columns, target="cuda", arch="sm_80")
        for columns in (True, False)
    }
    said = (
        f"X -> held is copied synchronously: {bytes_} byte{'s' * (bytes_ > 1)} at a time are too few for an "
        "asynchronous copy"
    )
    assert said in texts[True].notes
    assert f"\n// - {said}\n" in texts[True].source
    [line] = [line for line in resources(texts[True]).splitlines() if "X (global) -> held" in line]
    assert line.startswith("copy X")
    assert ", at once: copies in the background move 4, 8 or 16 bytes, test_refusals.py:" in line
    assert "copy_async<" not in texts[True].source
    assert "at once" not in texts[False].source + resources(texts[False])
    assert "copy_async<16>" in texts[False].source
    bits = np.random.default_rng(2).integers(0, 256, 64 * 32 * element.bytes, np.uint8)
    x = np.frombuffer(bits.tobytes(), element.numpy).reshape(64, 32)
    for target in ("reference", "cpu"):
        y = np.zeros_like(x)
        assert too_narrow(x, y, columns=True, target=target).target == target
        assert y.tobytes() == x.tobytes()
