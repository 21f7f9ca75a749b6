"""Results have the author's variable names, made unique, and unlike other words of printed text."""

# ruff: noqa: A001, F841, RUF059

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.ir.printer import print_kernel
from tilewright.lang.fragments import METHODS_ELSEWHERE
from tilewright.lang.program import Program
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda

from .kernels import ROWS, names, spec, trace


def test_statements_that_assign() -> None:
    class Stage:
        pass

    def kernel(A):
        plain = tw.shared((8, 8), tw.f16)
        annotated: tw.lang.tensors.Tensor = tw.shared((8, 8), tw.f16)  # type: ignore[name-defined]
        first = second = tw.shared((8, 8), tw.f16)
        if walrus := tw.shared((8, 8), tw.f16):
            pass
        row = plain[0]
        rows = plain[0:4]
        tw.shared((8, 8), tw.f16)
        Stage.attribute = tw.shared((8, 8), tw.f16)

    assert names(trace(kernel)) == [
        *("plain", "annotated", "first", "walrus", "row", "rows"),
        *("shared", "shared_1"),
    ]


def pair(A, rows):
    return tw.shared((rows, 8), A.dtype)


def test_unpacked_tuples_name_each_of_their_parts() -> None:
    def kernel(A):
        sA, sB = tw.shared((8, 8), tw.f16), tw.shared((8, 8), tw.f16)
        [first, second, third] = (
            pair(A, 8),
            sA.permute(1, 0),
            tw.shared((4, 4), tw.f16)[0:2],
        )
        a, b, c, d, e = (sA[0], sB[0], pair(A, 4), sA[0:4], tw.fragment(ROWS, tw.f32, 0))
        x, y = e * 2.0, e + e * 3.0
        x, y = y, x
        (low, high), rest = (sA[0:1], sA[1:2]), sA[2:3]

    assert names(trace(kernel)) == [
        *("sA", "sB", "first", "second", "shared", "third"),
        *("a", "b", "c", "d", "e", "x", "mul", "y"),
        *("sA_slice", "sA_slice_1", "rest"),
    ]


def test_arithmetic_names_its_last_step() -> None:
    def kernel(A):
        x = tw.fragment(ROWS, tw.f32, 0)
        y = x * 2.0 + 1.0
        mask = x < y
        z = -tw.exp(y)
        z += x
        w = tw.where(mask, x, z)

    assert names(trace(kernel)) == ["x", "mul", "y", "mask", "exp", "z", "add", "w"]


def test_launch_indices_take_all_names_of_an_unpacking() -> None:
    def kernel(A):
        m, n = tw.block_index((4, 4))
        batch = tw.batch_index(2)
        cm, cn = tw.hopper.cluster_index((2, 4))

    traced = trace(kernel)
    assert [axis.sym.name for axis in (*traced.grid, *traced.cluster)] == ["m", "n", "batch", "cm", "cn"]


def test_launch_indices_that_are_not_unpacked_have_default_names() -> None:
    def kernel(A):
        at = tw.block_index((4, 4))
        A[at[0]]

    assert [axis.sym.name for axis in trace(kernel).grid] == ["block_m", "block_n"]


def test_a_helper_that_returns_a_result_names_it_after_its_callers_variable() -> None:
    def stage():
        return tw.shared((8, 8), tw.f16)

    def kernel(A):
        sA = stage()
        sB = stage()
        stage()

    assert names(trace(kernel)) == ["sA", "sB", "shared"]


def test_loop_targets() -> None:
    class Box:
        pass

    def kernel(A):
        for k in tw.range(2):
            A[k]
        for k in tw.range(2):
            A[k]
        for Box.index in tw.range(2):
            A[Box.index]

    loops = [name for name in names(trace(kernel)) if not name.startswith("A_")]
    assert loops == ["k", "k_1", "k_2"]


def test_names_that_text_reserves_are_altered() -> None:
    def kernel(A):
        i0 = tw.shared((8, 8), tw.f16)
        d0 = tw.shared((8, 8), tw.f16)
        mma1 = tw.shared((8, 8), tw.f16)
        f16 = tw.shared((8, 8), tw.f16)
        inf = tw.shared((8, 8), tw.f16)
        größe = tw.shared((8, 8), tw.f16)
        for j1 in tw.range(4):
            A[j1]
        range = tw.shared((8, 8), tw.f16)
        tw.copy(i0, d0, threads=(4, 8))

    traced = trace(kernel)
    assert names(traced) == ["i0_", "d0_", "mma1_", "f16_", "inf_", "gre_", "j1_", "A_slice", "range"]
    text = print_kernel(traced)
    assert print_kernel(tw.ir.parse_kernel(text)) == text


def test_names_that_c_keeps_for_itself_are_altered_in_its_text() -> None:
    def kernel(A):
        NULL = tw.shared((8, 8), tw.f16)
        tw.copy(A.tile((8, 8), (0, 0)), NULL, threads=(4, 8))
        __syncthreads = tw.shared((8, 8), tw.f16)
        tw.copy(NULL, __syncthreads, threads=(4, 8))
        tw.barrier()
        _Float16 = tw.fragment(tw.blocked((8, 8), (4, 8)), tw.f16, 0)
        tw.copy(_Float16, NULL)

    traced = trace(kernel)
    assert names(traced)[0] == "NULL"
    text = cuda.emit(traced, "sm_90a").text
    assert "half_t* const NULL_1 = " in text
    assert "half_t* const syncthreads = " in text
    assert "half_t Float16[" in text
    compile_text(text, "sm_90a")


def test_a_dimension_may_be_called_like_a_parameter() -> None:
    def kernel(A, B):
        tw.copy(A.tile((8, 8), (0, 0)), B.tile((8, 8), (0, 0)), threads=(4, 8))

    traced = trace(kernel, {"A": "B K", "B": "B K"})
    assert [value.name for value in traced.tensors] == ["A", "B"]
    assert [size.sym.name for size in traced.sizes] == ["B_1", "A_stride0", "K", "B_stride0"]


def test_parameters_must_not_have_reserved_names() -> None:
    def kernel(f16, i1): ...

    with pytest.raises(
        TypeError, match="f16 has a name that printed kernels reserve; nearest legal choice: f16_"
    ):
        Program(kernel)


def test_undeclared_dimensions_are_named_after_their_tensor() -> None:
    def kernel(X):
        n = tw.block_index(X.shape[0])
        X[n]

    traced = trace(kernel, X=spec(rank=1))
    assert [size.sym.name for size in traced.sizes] == ["X_0"]


def test_an_explicit_name_wins() -> None:
    def kernel(A):
        x = tw.shared((8, 8), tw.f16, name="ring")
        y = tw.fragment(ROWS, tw.f32, 0, name="total")
        ring = tw.shared((8, 8), tw.f16)

    assert names(trace(kernel)) == ["ring", "total", "ring_1"]
    with pytest.raises(tw.TraceError, match="name='two words' is not a name; nearest legal choice"):
        trace(lambda A: tw.shared((8, 8), tw.f16, name="two words"))


def test_what_is_made_by_the_way_takes_no_name_of_the_authors() -> None:
    def kernel(A):
        x = tw.fragment(ROWS, tw.f32, 0)
        y = x * 2.0 + 1.0
        tw.shared((8, 8), tw.f16)
        mul = tw.exp(y)
        shared = tw.shared((8, 8), tw.f16)
        later = tw.shared((8, 8), tw.f16, name="exp")
        z = tw.exp(y) + 1.0

    assert names(trace(kernel)) == ["x", "mul_1", "y", "shared_1", "mul", "shared", "exp", "exp_1", "z"]


LIBRARY = """
import tilewright as tw

def staged(tile, dtype):
    sA = tw.shared((8, 8), dtype)
    for k in tw.range(4):
        sA[k]
    part = sA[0:4]
    return tw.shared((4, 4), dtype)
"""


def library() -> Any:
    """Return a function in a file of the package, like the library's functions that write kernels."""
    path = str(Path(tw.__file__).parent / "ops" / "staged.py")
    names: dict[str, Any] = {}
    exec(compile(LIBRARY, path, "exec"), names)
    return names["staged"]


def test_names_of_the_library_give_way_to_the_authors() -> None:
    staged = library()

    def kernel(A):
        first = staged(A, tw.f16)
        sA = tw.shared((8, 8), tw.f16)
        for k in tw.range(2):
            sA[k]

    found = [name for name in names(trace(kernel)) if "slice" not in name]
    assert found == ["sA_1", "k_1", "part", "first", "sA", "k"]


def test_what_the_library_makes_is_shown_at_the_authors_line() -> None:
    staged = library()

    def kernel(A):
        made = staged(A, tw.f16)

    for op in trace(kernel).walk():
        assert op.location is not None
        assert {Path(frame.file).name for frame in op.location.frames} == {"test_names.py"}
        assert op.location.frame.function == "kernel"


def test_an_error_inside_the_library_is_shown_at_the_authors_line() -> None:
    staged = library()

    def kernel(A):
        staged(A, "f17")

    with pytest.raises(tw.TilewrightError) as failure:
        trace(kernel)
    assert "test_names.py" in str(failure.value)
    assert "staged.py" not in str(failure.value)


@pytest.mark.parametrize(
    ("declared", "near"),
    [("4*M N", "D0 N"), ("M 8", "M D1"), ("M, N", "M N"), ("M,N", "M N"), ("... M,", "... M")],
)
def test_a_dimension_is_a_name(declared: str, near: str) -> None:
    with pytest.raises(tw.SignatureError, match=rf"dimension '[^']*' of A is not a name;.*: A='{near}'"):
        tw.kernel(A=declared)(lambda A: None)


def test_a_function_that_is_asked_for_as_a_method_is_named() -> None:
    assert set(tw.__all__) > METHODS_ELSEWHERE

    def method(A):
        tw.load(A.tile((16, 16), (0, 0))).relu()

    def nothing(A):
        tw.load(A.tile((16, 16), (0, 0))).rely()

    with pytest.raises(
        AttributeError, match=r"^'Fragment' object has no attribute 'relu'; nearest: tw\.relu\(x\)$"
    ):
        trace(method)
    with pytest.raises(AttributeError, match=r"^'Fragment' object has no attribute 'rely'$"):
        trace(nothing)
