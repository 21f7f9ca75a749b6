"""Symbolic integers: what the class of arrays tells about them, and which become kernel parameters."""

# ruff: noqa: PERF401

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.ir.kernel import Argument, Derived, Extent, SizeParam, Stride
from tilewright.ir.ops import If
from tilewright.lang.scalars import Scalar
from tilewright.symbolic.nodes import Sym, bits, bounds, divisor

from .kernels import DIMS, broken, names, ops, spec, trace, traced_gemm

LEAST, LARGEST = -(2**31), 2**31 - 1


def sizes(kernel) -> dict[str, SizeParam]:
    return {size.sym.name: size for size in kernel.sizes}


def test_sources_and_order() -> None:
    found = sizes(traced_gemm())
    assert {name: size.source for name, size in found.items()} == {
        "M": Extent("A", 0),
        "A_stride0": Stride("A", 0),
        "K": Extent("A", 1),
        "N": Extent("B", 0),
        "B_stride0": Stride("B", 0),
        "C_stride0": Stride("C", 0),
    }
    assert {size.bits for size in found.values()} == {32}


def test_divisors_of_a_shared_dimension_are_combined() -> None:
    found = sizes(traced_gemm(A=spec(extents=6), B=spec(extents=4), C=spec(tw.f32, extents=4)))
    assert (found["K"].sym.divisor, found["N"].sym.divisor) == (12, 4)
    assert found["M"].sym.divisor == 12
    assert bounds(found["K"].sym) == (0, LARGEST // 12 * 12)


def test_strides_of_wide_arrays_have_64_bits() -> None:
    found = sizes(traced_gemm(B=spec(wide=True)))
    assert {name: size.bits for name, size in found.items() if "stride" in name} == {
        "A_stride0": 32,
        "B_stride0": 64,
        "C_stride0": 32,
    }


def test_the_unit_stride_is_a_constant() -> None:
    column_major = traced_gemm(A=spec(unit_dim=0, strides=8))
    assert "A_stride1" in sizes(column_major)
    assert "A_stride0" not in sizes(column_major)


def test_without_a_unit_stride_all_strides_are_parameters() -> None:
    assert {"A_stride0", "A_stride1"} <= sizes(traced_gemm(A=spec(unit_dim=None))).keys()


def test_unused_sizes_are_dropped() -> None:
    def kernel(A, n, unused):
        tw.copy(A.tile((8, 8), (n, 0)), tw.shared((8, 8), tw.f16), threads=(4, 8))

    traced = trace(kernel, {"A": "M K", "n": int, "unused": int})
    assert sizes(traced).keys() == {"M", "A_stride0", "K", "n"}
    assert sizes(traced)["n"].source == Argument("n")


def test_arguments_may_be_negative() -> None:
    def kernel(n):
        seen.append(n.expr)

    seen: list[Sym] = []
    trace(kernel, {"n": int})
    assert bounds(seen[0]) == (LEAST, LARGEST)


def test_loop_indices_know_their_span() -> None:
    def kernel(A, n):
        for k in tw.range(16, 128, 16):
            seen.append(k.expr)
        for j in tw.range(n):
            seen.append(j.expr)

    seen: list[Sym] = []
    trace(kernel, {"n": int})
    static, dynamic = seen
    assert (bounds(static), divisor(static)) == ((16, 112), 16)
    assert dynamic.stop == Sym("n", LEAST, LARGEST)


def test_block_batch_and_cluster_indices() -> None:
    def kernel(A, n):
        m = tw.block_index(tw.ceil_div(A.shape[0], 64))
        b = tw.batch_index(n)
        c = tw.hopper.cluster_index(2)
        A.tile((8, 8), (m + b + c, 0))

    traced = trace(kernel, {"A": "M K", "n": int})
    assert [(axis.sym.name, str(axis.extent), axis.kind) for axis in traced.grid] == [
        ("m", "(M + 56) // 64", "block"),
        ("b", "n", "batch"),
    ]
    [member] = traced.cluster
    assert (member.sym.name, member.axis, member.extent) == ("c", 0, 2)
    assert bounds(member.sym) == (0, 1)
    assert broken(traced) == []


def test_derived_sizes_are_computed_by_the_launcher() -> None:
    def kernel(A):
        tiles = tw.derived(tw.ceil_div(A.shape[0], 64))
        twice = tw.derived(tiles * 2)
        area = tw.derived(A.shape[0] * A.shape[1])
        assert tw.derived(7) == 7
        for k in tw.range(twice + area):
            tw.barrier()
            k + 1

    found = sizes(trace(kernel, {"A": "M K"}))
    assert list(found) == ["M", "A_stride0", "K", "tiles", "twice", "area"]
    assert isinstance(found["tiles"].source, Derived)
    assert {name: size.bits for name, size in found.items()}["area"] == 64
    assert (found["tiles"].bits, bounds(found["twice"].sym)[0]) == (32, 0)


def test_unused_derived_sizes_are_dropped() -> None:
    def kernel(n):
        tw.derived(n * 2)
        tw.barrier()

    assert trace(kernel, {"n": int}).sizes == ()


def test_an_array_that_is_never_accessed_keeps_its_sizes() -> None:
    def kernel(A):
        tw.barrier()

    text = tw.ir.print_kernel(traced := trace(kernel, {"A": "M K"}))
    assert sizes(traced).keys() == {"M", "A_stride0", "K"}
    assert tw.ir.print_kernel(tw.ir.parse_kernel(text)) == text


def test_workspaces() -> None:
    def kernel(A):
        counters = tw.workspace(tw.ceil_div(A.shape[0], 64), tw.i32, zeroed=True)
        tw.copy(counters.tile((32,), (0,)), tw.shared(32, tw.i32), threads=32)

    traced = trace(kernel, {"A": "M K"})
    [space] = traced.workspaces
    assert (space.value.name, str(space.elems), space.zeroed) == ("counters", "(M + 56) // 64", True)
    assert "M" in sizes(traced)
    assert broken(traced) == []


def test_arithmetic_and_comparisons() -> None:
    n = Scalar(Sym("n", 0, 100, 4))
    assert str(2 * n + n - 3) == "3*n - 3"
    assert str((n << 3) % 8) == "0"
    assert str(n >> 2) == "n // 4"
    assert str(7 - n) == "7 - n" or str(7 - n) == "-n + 7"
    assert str(-n ^ -n) == "0"
    assert str(tw.minimum(n, 200)) == "n"
    assert str(tw.maximum(n, 200)) == "200"
    assert str(200 // tw.maximum(n, 8)) == "200 // max(n, 8)" or "max(8, n)" in str(200 // tw.maximum(n, 8))
    assert bool(n < 101)
    assert not bool(n >= 101)
    assert not bool(n == 3)
    assert bool(n != 3)
    assert str((n < 50) & (n > 10)) == "n < 50 and 10 < n"
    assert str((n < 50) | True) == "True"
    assert str(~(n < 50)) == "49 < n" or str(~(n < 50)) == "50 < n + 1"


def test_conditions_become_branches() -> None:
    def kernel(A, n):
        with tw.when((n > 3) & ~(n == 7)):
            tw.barrier()
        with tw.otherwise():
            tw.warp_barrier()

    traced = trace(kernel, {"n": int})
    assert ops(traced) == ["if", "barrier", "warp_barrier"]
    [branch] = traced.body.ops
    assert isinstance(branch, If)
    assert str(branch.condition) == "3 < n and not (n == 7)"
    assert [op.name for op in branch.otherwise.ops] == ["warp_barrier"]


def test_otherwise_belongs_to_the_branch_before_it_even_if_that_is_empty() -> None:
    def kernel(A, n):
        with tw.when(n > 3):
            tw.barrier()
        with tw.when(False):
            pass
        with tw.otherwise():
            tw.warp_barrier()

    first, second = trace(kernel, {"n": int}).body.ops
    assert isinstance(first, If)
    assert isinstance(second, If)
    assert (len(first.otherwise.ops), len(second.otherwise.ops)) == (0, 1)


def test_variables_of_the_kernel() -> None:
    def kernel(A, n):
        row = tw.var(n)
        for _k in tw.range(4):
            now = row.get()
            A.tile((8, 8), (now, 0))
            row.set(now + 1)

    traced = trace(kernel, {"n": int})
    assert ops(traced) == ["var", "for", "get_var", "view", "set_var"]
    assert names(traced) == ["row", "_k", "now", "A_tile"]
    assert broken(traced) == []


def test_equal_dimensions_are_one_size() -> None:
    def kernel(A, B):
        assert A.shape[1].expr is B.shape[1].expr

    trace(kernel, {"A": "M K", "B": "N K"})


def test_a_declaration_of_another_rank_is_refused() -> None:
    with pytest.raises(tw.LaunchError, match=r"A has rank 3, but is declared as \(M, K\) of rank 2"):
        traced_gemm(A=spec(rank=3))
    assert DIMS["A"] == "M K"


def test_offsets_of_wide_arrays_do_not_fit_32_bits() -> None:
    kernel = traced_gemm(A=spec(wide=True))
    [tile] = [op.results[0] for op in kernel.walk() if op.results and op.results[0].name == "A_tile"]
    assert bits(tile.tensor.view.offset) == 64
