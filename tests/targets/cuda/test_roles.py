"""Roles in the text: one ``if`` with a branch for each, and inner ones for the roles inside."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.lang.program import Program
from tilewright.runtime.nvrtc import FATAL, compile_text
from tilewright.targets import cuda

SPEC = tw.TensorSpec(tw.f16, 2, 1, (64, 64), (8, 1), 16, False)


def nested(X, Y):
    with tw.role(warps=4, registers=40), tw.role(warps=1):
        tw.copy(X.tile((16, 64), (0, 0)), Y.tile((16, 64), (3, 0)), threads=(8, 4))
    with tw.role(warps=8, registers=232):
        with tw.role(warps=2):
            tw.copy(X.tile((16, 64), (1, 0)), Y.tile((16, 64), (2, 0)), threads=(8, 8))
        with tw.role(warps=6), tw.role(warps=2):
            tw.copy(X.tile((32, 64), (1, 0)), Y.tile((32, 64), (0, 0)), threads=(16, 4))


def test_the_text_of_inner_roles() -> None:
    text = cuda.emit(Program(nested, {"X": "M N", "Y": "P Q"}).trace({"X": SPEC, "Y": SPEC}), "sm_90a").text
    lines = [line.strip() for line in text.partition("const int tid")[2].splitlines()]
    marks = ("if (tid", "else", "const int tid", "set_registers")
    assert [line for line in lines if line.startswith(marks)] == [
        "if (tid < 128) {",
        "set_registers_down<40>();",
        "if (tid < 32) {",
        "else {",
        "set_registers_up<232>();",
        "const int tid = threadIdx.x - 128;",
        "if (tid < 64) {",
        "else {",
        "const int tid = threadIdx.x - 192;",
        "if (tid < 64) {",
    ]
    binary = compile_text(text, "sm_90a")
    assert not any(code in binary.log for code in FATAL)


def arriving(X, Y):
    full = tw.hopper.mbarrier(1, arrivals=2)
    tw.barrier()
    with tw.role(warps=2):
        tw.hopper.arrive(full[0], expect_bytes=1024, each="warp")


def test_warps_that_arrive_announce_their_bytes() -> None:
    text = cuda.emit(Program(arriving, {"X": "M N", "Y": "P Q"}).trace({"X": SPEC, "Y": SPEC}), "sm_90a").text
    assert "__syncwarp();\n    if (tid % 32 == 0) mbarrier_arrive_expect(full, 1024);" in text


def test_a_role_after_one_with_roles_inside_is_one_more_way_of_the_branch() -> None:
    def kernel(X, Y):
        with tw.role(warps=1):
            tw.copy(X.tile((16, 64), (0, 0)), Y.tile((16, 64), (3, 0)), threads=(8, 4))
        with tw.role(warps=2), tw.role(warps=1):
            tw.copy(X.tile((16, 64), (1, 0)), Y.tile((16, 64), (2, 0)), threads=(8, 4))
        with tw.role(warps=1):
            tw.copy(X.tile((16, 64), (2, 0)), Y.tile((16, 64), (1, 0)), threads=(8, 4))

    text = cuda.emit(Program(kernel, {"X": "M N", "Y": "P Q"}).trace({"X": SPEC, "Y": SPEC}), "sm_90a").text
    heads = [line.strip() for line in text.splitlines() if line.strip().startswith(("if (tid", "else"))]
    assert heads == ["if (tid < 32) {", "else if (tid < 96) {", "if (tid < 32) {", "else {"]


def again(X, Y, *, meets):
    held = tw.shared((2, 64), X.dtype)
    with tw.role(warps=1, groups=2) as g:
        tw.copy(X.tile((1, 64), (g, 0)), held.tile((1, 64), (g, 0)), threads=32)
    with tw.role(warps=1):
        tw.copy(X.tile((1, 64), (2, 0)), Y.tile((1, 64), (2, 0)), threads=32)
    if meets:
        tw.barrier()
    with tw.role(warps=1, groups=2, first=1) as g:
        tw.copy(held.tile((1, 64), (1 - g, 0)), Y.tile((1, 64), (g, 0)), threads=32)


@pytest.mark.parametrize("meets", [True, False])
def test_warps_that_have_had_a_role_take_another_one(meets: bool) -> None:
    kernel = tw.kernel(again, X="M N", Y="P Q").bind(meets=meets)
    x, y = np.arange(192, dtype=np.float32).reshape(3, 64), np.full((3, 64), np.nan, np.float32)
    assert bool(kernel.check(x, y).findings) != meets
    text = cuda.emit(kernel.trace(x, y), "sm_90a").text
    assert "__launch_bounds__(96)" in text
    assert text.count("if (tid >= 32) {") == 1  # a branch of its own: two of its warps were in the other one
    assert compile_text(text, "sm_90a")
    if meets:
        assert kernel(x, y, target="reference").target == "reference"
        np.testing.assert_array_equal(y, x[[1, 0, 2]])
