"""The rules of copies: shapes, distributions, vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw
from tilewright.ir.kernel import Kernel
from tilewright.ir.legality import widest_vector
from tilewright.ir.ops import Copy
from tilewright.ir.verify import broken_rules, violations
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec

from .broken import found, said, spec

TILE = "A.tile((256, 32), (0, 0))"


def test_shapes_must_agree() -> None:
    def author(A):
        tw.copy(A.tile((64, 32), (0, 0)), tw.shared((32, 64), A.dtype), threads=(8, 4))

    [(rule, message, nearest)] = said(author)
    assert (rule, nearest) == ("shape", "A.tile((64, 32), (0, 0)).permute(1, 0)")
    assert message == "copy from A.tile((64, 32), (0, 0)) of shape (64, 32) to shared of shape (32, 64)"


@pytest.mark.parametrize(
    ("source", "target", "said_nearest"),
    [
        ((64, 1), (64,), "T.unmerge(0, (64, 1))"),
        ((1, 64), (64,), "T.unmerge(0, (1, 64))"),
        ((64,), (1, 64), "S.unmerge(0, (1, 64))"),
        ((32,), (8, 32), "S.broadcast(0, 8)"),
        ((32,), (32, 8), "S.broadcast(1, 8)"),
        ((8, 32), (32,), "(32,) on both sides"),
        ((64, 32), (32, 32), "(32, 32) on both sides"),
    ],
)
def test_the_transform_that_makes_shapes_agree_is_named(
    source: tuple[int, ...], target: tuple[int, ...], said_nearest: str
) -> None:
    def author():
        S = tw.shared(source, tw.f16)
        T = tw.shared(target, tw.f16)
        tw.copy(S, T, threads=32)

    assert [nearest for rule, _, nearest in said(author) if rule == "shape"] == [said_nearest]


def test_symbolic_shapes_must_be_the_same_expression() -> None:
    def author(A, B):
        tw.copy(A.tile((8, 8), (0, 0)).permute(1, 0), B.tile((8, 8), (0, 0)), threads=(8, 4))
        tw.copy(A, B, threads=(8, 4))

    [(rule, message, _)] = said(author)
    assert rule == "threads x slice = tile"
    assert "static tile only" in message


def test_copies_need_one_distribution() -> None:
    def author(A):
        sA = tw.shared((8, 8), A.dtype)
        tw.copy(A.tile((8, 8), (0, 0)).partition((8, 4)), sA.partition((4, 8)))
        tw.copy(A.tile((8, 8), (0, 0)).partition((8, 4)), sA, threads=(4, 8))
        tw.copy(A.tile((8, 8), (0, 0)).partition((8, 4)), sA)
        tw.copy(tw.load(sA.partition((8, 4))), sA.partition((8, 4)))

    assert [message for _, message, _ in said(author)] == [
        "A_part and sA_part distribute the tile differently over the threads",
        "threads=... and A_part_1 distribute the tile differently over the threads",
    ]


def test_a_copy_of_the_ir_has_a_distribution_too() -> None:
    """The language distributes tiles to all threads; a kernel read from text may lack the distribution."""

    def author(A):
        ends.extend((A.tile((8, 8), (0, 0)).value, tw.shared((8, 8), A.dtype, name="sA").value))

    ends: list[Any] = []
    found(author)
    [violation] = broken_rules(Copy(*ends))
    assert (
        violation.message
        == "no distribution determines which thread copies which elements of A.tile((8, 8), (0, 0)) to sA"
    )


def test_a_fragment_must_have_the_shape_of_the_distribution() -> None:
    def author(A):
        x = tw.fragment(tw.blocked((8, 8), (8, 4), (1, 0)), tw.f16, 0)
        kernels.append(x.value)

    kernels: list[Any] = []
    found(author)
    [x] = kernels
    wide = tw.blocked((8, 16), (8, 4), (1, 0))
    [violation] = broken_rules(Copy(x, x, wide))
    assert "distribute the tile" in violation.message


def test_distributions_must_cover_the_tile_exactly_once() -> None:
    hole = tw.Distribution((8, 8), (tw.Mode(4, 0, 2),), (tw.Mode(8, 1, 1),))

    def author(A):
        tw.load(A.tile((8, 8), (0, 0)), hole)

    [(rule, message, _)] = said(author)
    assert (rule, message) == (
        "threads x slice = tile",
        (
            "the distribution does not move every element of the tile (8, 8) exactly once: "
            "no thread holds (1, 0)"
        ),
    )


def test_threads_must_divide_the_tile() -> None:
    def author(A):
        sA = tw.shared((256, 32), A.dtype)
        tile = A.tile((256, 32), (0, 0))
        tw.copy(tile, sA, threads=(48, 3))
        tw.copy(tile, sA, threads=(300, 4))
        tw.copy(tile, sA, threads=(0, 4))
        tw.copy(tile, sA, threads=(256,))
        tw.copy(tile, sA, threads=(64, 4, 1))
        tw.copy(tile, sA, threads=tw.Layout((64, 4), (8, 1)))
        tw.copy(tile, sA, threads=tw.Layout((64, 4), (1, 64)))

    assert [(message, nearest) for _, message, nearest in said(author)] == [
        (
            "48 threads cannot share the extent 256 of dimension 0 of the tile (256, 32) equally",
            "threads=(32, 2)",
        ),
        (
            "300 threads cannot share the extent 256 of dimension 0 of the tile (256, 32) equally",
            "threads=(256, 4)",
        ),
        ("threads (0, 4): thread counts are positive integer constants", ""),
        ("threads (256,) run along 1 dimensions, the tile (256, 32) has 2", "2 thread counts"),
        (
            "threads (64, 4, 1) run along 3 dimensions, the tile (256, 32) has 2",
            "projection with one 1 per dimension of the tile and None for the others",
        ),
        (
            (
                "thread layout (64,4):(8,1) does not number its threads 0 to 255: "
                "dimension 0 has stride 8, expected 4"
            ),
            "",
        ),
    ]


# ---------------------------------------------------------------- vectors


def vectors(
    *, vector: int | None, threads: Any = (64, 4), vector_dim: int | None = None
) -> Callable[..., Any]:
    def author(A):
        sA = tw.shared((256, 32), A.dtype)
        tw.copy(A.tile((256, 32), (0, 0)), sA, threads=threads, vector=vector, vector_dim=vector_dim)

    return author


@pytest.mark.parametrize(
    ("author", "array", "rule", "message", "nearest"),
    [
        (
            vectors(vector=8),
            spec(stride=4),
            "vector width",
            (
                f"vector 8 on {TILE}: A_stride0, the stride of dimension 0 of A, need not be a multiple of 8 "
                "(only of 4)"
            ),
            "vector=4, or arrays with A_stride0 a multiple of 8",
        ),
        (
            vectors(vector=8),
            spec(extents=2),
            "vector width",
            f"vector 8 on {TILE}: K, the extent of dimension 1 of A, need not be a multiple of 8 (only of 2)",
            "vector=2, or arrays with K a multiple of 8",
        ),
        (
            vectors(vector=4),
            spec(unit=0),
            "vector width",
            (
                f"vector 4 on {TILE}: it is contiguous along dimension 0, "
                "the threads' runs lie along dimension 1"
            ),
            "vector=1, or vector_dim=0 if both sides are contiguous along it",
        ),
        (
            vectors(vector=8),
            spec(align=8),
            "alignment",
            "vector 8 of f16 needs addresses that are multiples of 16 bytes, A starts at a multiple of 8",
            "vector=4",
        ),
        (vectors(vector=3), spec(), "vector width", "vector 3 is not a power of two", "vector=8"),
        (vectors(vector=0), spec(), "vector width", "vector 0 is not a power of two", "vector=8"),
        (
            vectors(vector=8, threads=(32, 8)),
            spec(),
            "vector width",
            "vectors of 8 do not divide the 4 contiguous elements of a thread along dimension 1",
            "vector=4",
        ),
        (
            vectors(vector=8),
            spec(tw.f32),
            "vector width",
            "vector 8 makes accesses of 32 bytes, more than 16",
            "vector=4",
        ),
    ],
)
def test_vectors(
    author: Callable[..., Any], array: TensorSpec, rule: str, message: str, nearest: str
) -> None:
    assert said(author, declared={"A": "M K"}, A=array) == [(rule, message, nearest)]


@pytest.mark.parametrize(
    ("array", "widest"),
    [
        (spec(), 8),
        (spec(stride=4), 4),
        (spec(extents=2), 2),
        (spec(unit=0), 1),
        (spec(tw.f32), 4),
        (spec(tw.f64), 2),
    ],
    ids=str,
)
def test_the_widest_vector_is_legal_and_twice_that_is_not(array: TensorSpec, widest: int) -> None:
    def copy(vector: int | None) -> tuple[Kernel, Copy]:
        kernel = Program(vectors(vector=vector)).trace({"A": array})
        [made] = [op for op in kernel.walk() if isinstance(op, Copy)]
        return kernel, made

    assert widest_vector(copy(None)[1]) == widest
    assert violations(copy(widest)[0]) == []
    assert violations(copy(2 * widest)[0]) != []


def test_a_wide_vector_along_the_other_dimension() -> None:
    def author(A):
        view = tw.View.strided((256, 32), (1, 256))
        sA = tw.shared((256, 32), A.dtype, layout=view)
        tw.copy(A.tile((256, 32), (0, 0)), sA, threads=(8, 32), vector=8, vector_dim=0)

    assert said(author, A=spec(unit=0)) == []


def test_swizzled_shared_memory_limits_the_vector() -> None:
    def author(A):
        sA = tw.shared((64, 64), A.dtype).swizzle(3, 2, 3)
        tw.copy(A.tile((64, 64), (0, 0)), sA, threads=(16, 8), vector=8)

    [(rule, message, nearest)] = said(author)
    assert (rule, nearest) == ("vector width", "vector=4")
    assert message.startswith("vector 8 on sA: 8 neighbours along dimension 1 are not contiguous")


def test_asynchronous_copies() -> None:
    def author(A):
        sA = tw.shared((64, 32), A.dtype)
        sF = tw.shared((64, 32), tw.f32)
        tile = A.tile((64, 32), (0, 0))
        tw.copy_async(tile, sA, threads=(64, 4), vector=8)
        tw.copy_async(tile, sA, threads=(64, 4), vector=1)
        tw.copy_async(tile, sF, threads=(64, 4))
        tw.copy_async(sA, tile, threads=(64, 4))

    rules = said(author)
    assert [rule for rule, _, _ in rules] == ["copy_async"] * 3
    assert "vector 1 of f16 is 2 bytes" in rules[0][1]
    assert rules[0][2] == "vector=2"
    assert rules[1][1] == "cannot convert f16 to f32 in the background"


# ---------------------------------------------------------------- the nearest legal choice


def test_a_distribution_of_another_shape_names_one_of_this_shape() -> None:
    def author(A):
        tw.copy(
            A.tile((64, 32), (0, 0)), tw.shared((64, 32), A.dtype), threads=tw.raked((32, 32), (8, 4), 1, 1)
        )

    [(rule, message, nearest)] = said(author)
    assert (rule, message) == (
        "distribution",
        "a distribution of shape (32, 32) for a tile of shape (64, 32)",
    )
    assert nearest == "tw.blocked((64, 32), (32, 1))"

    def legal(A):
        made = eval(nearest, {"tw": tw})  # as an author would write it
        tw.copy(A.tile((64, 32), (0, 0)), tw.shared((64, 32), A.dtype), threads=made)

    assert said(legal) == []


@pytest.mark.parametrize(
    ("threads", "values", "flaw"),
    [
        ((tw.Mode(8, 0, 1),), (tw.Mode(4, 1, 1),), "no thread holds (0, 4)"),
        ((tw.Mode(8, 0, 1),), (tw.Mode(16, 1, 1),), "value 8 of thread 0 is (0, 8), outside of the tile"),
        ((tw.Mode(8, 0, 1), tw.Mode(2, 1, 2)), (tw.Mode(4, 1, 1),), "2 values are (0, 2)"),
    ],
)
def test_a_map_that_does_not_deal_out_the_tile_says_where(threads, values, flaw) -> None:
    def author(A):
        spread = tw.Distribution((8, 8), threads, values)
        tw.copy(A.tile((8, 8), (0, 0)), tw.shared((8, 8), A.dtype), threads=spread)

    [(rule, message, nearest)] = said(author)
    assert rule == "threads x slice = tile"
    assert message == f"the distribution does not move every element of the tile (8, 8) exactly once: {flaw}"
    assert eval(nearest, {"tw": tw}).is_exact


def test_threads_over_a_whole_array_are_told_of_tiles() -> None:
    def author(A, B):
        tw.copy(A, B, threads=(8, 4))
        tw.copy(A.tile((8, 8), (0, 0)), B.tile((8, 8), (0, 0)), threads=(8, 4), vector_dim=2)

    assert [nearest for _, _, nearest in said(author)] == [
        "a tile of it, .tile(shape, at) with constants in shape",
        "vector_dim=1",
    ]


def test_fragments_of_two_maps_are_told_of_redistribute() -> None:
    def author(A):
        r = tw.load(A.tile((64, 32), (0, 0)), tw.by_warps((64, 32), tw.atoms.MMA_F16.c, (4, 1)))
        q = tw.fragment(tw.raked((64, 32), (32, 4), 8, 1), A.dtype)
        tw.copy(r, q)

    [(rule, _, nearest)] = said(author)
    assert rule == "distribution"
    assert nearest == "tw.redistribute(r, like=q, scratch=tw.shared((64, 32), tw.f16)), copied to q"

    def legal(A):
        r = tw.load(A.tile((64, 32), (0, 0)), tw.by_warps((64, 32), tw.atoms.MMA_F16.c, (4, 1)))
        q = tw.fragment(tw.raked((64, 32), (32, 4), 8, 1), A.dtype)
        tw.copy(tw.redistribute(r, like=q, scratch=tw.shared((64, 32), tw.f16)), q)

    assert said(legal) == []


def test_an_array_that_is_contiguous_nowhere_is_named_with_its_stride() -> None:
    def author(A):
        tw.copy(A.tile((8, 8), (0, 0)), tw.shared((8, 8), A.dtype), threads=(8, 1), vector=4)

    apart = TensorSpec(tw.f16, 2, None, (8, 8), (8, 2), 16, False)
    assert said(author, A=apart) == [
        (
            "vector width",
            (
                "vector 4 on A.tile((8, 8), (0, 0)): "
                "A is not contiguous along its dimension 1 (stride A_stride1)"
            ),
            "vector=1, or np.ascontiguousarray(A)",
        )
    ]
    assert said(author, A=spec()) == []


def test_im2col_of_channels_apart_names_the_channel() -> None:
    def author(A):
        matrix = A.im2col(spatial=(1, 2), filter=(3, 3), batch=0, channel=3)
        tw.copy(matrix.tile((32, 32), (0, 0)), tw.shared((32, 32), A.dtype), threads=(32, 1), vector=4)

    apart = TensorSpec(tw.f16, 4, None, (8, 8, 8, 8), (8, 8, 8, 4), 16, False)
    [(rule, message, nearest)] = said(author, A=apart)
    assert rule == "vector width"
    assert message.endswith("A is not contiguous along its dimension 3 (stride A_stride3)")
    assert nearest == "vector=1, or np.ascontiguousarray(A)"
