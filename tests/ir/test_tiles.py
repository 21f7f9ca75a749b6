"""Refused reductions, broadcasts and other maps, with the nearest legal choice."""

from __future__ import annotations

import pytest

import tilewright as tw

from .broken import said

ROWS = tw.blocked((8, 64), (4, 8), (1, 0))
ACROSS = tw.raked((8, 64), (1, 64), 1, 1)
MMA = tw.TiledMma(tw.atoms.MMA_F16, (2, 2), (1, 2))


def test_a_reduction_over_several_warps_needs_scratch() -> None:
    def author():
        tw.reduce_sum(tw.fragment(ACROSS, tw.f16, 0), 1)

    [(rule, message, nearest)] = said(author)
    assert rule == "reduce"
    assert "each result needs values of 2 warps" in message
    assert nearest == "scratch=tw.shared((8, 2), tw.f32)"

    def legal():
        tw.reduce_sum(tw.fragment(ACROSS, tw.f16, 0), 1, scratch=tw.shared((8, 2), tw.f32))

    assert said(legal) == []


def test_a_reduction_within_rows_names_the_order_of_threads_that_has_rows_in_warps() -> None:
    def across():
        tw.reduce_sum(tw.fragment(tw.blocked((4, 128), (4, 32)), tw.f32, 0), 1)

    def within():
        tw.reduce_sum(tw.fragment(tw.blocked((4, 128), (4, 32), order=(1, 0)), tw.f32, 0), 1)

    [(_, _, nearest)] = said(across)
    assert nearest.startswith("scratch=tw.shared((4, 4), tw.f32), or threads that dimension 1 numbers first")
    assert nearest.endswith("tw.blocked(..., order=(1, 0))")
    assert said(within) == []


def test_threads_combine_in_pairs() -> None:
    three = tw.Distribution((8, 6), (tw.Mode(3, 1, 1), tw.Mode(8, 0, 1)), (tw.Mode(2, 1, 3),))

    def author():
        tw.reduce_max(tw.fragment(three, tw.f32, 0), 1)

    assert said(author) == [
        ("reduce", "max over 3 threads, 1 apart: lanes pair up", "2 threads, a power of two apart")
    ]


def test_a_dimension_that_is_none_is_told_the_nearest() -> None:
    for dim, nearest in ((2, 1), (-3, -2)):

        def author():
            tw.reduce_sum(tw.fragment(ROWS, tw.f32, 0), dim)  # noqa: B023

        with pytest.raises(
            tw.TraceError, match=f"dim={dim} of a tile .*; nearest legal choice: dim={nearest}\n"
        ):
            said(author)


def test_a_reduction_of_masks_is_refused() -> None:
    def author():
        tw.reduce_max(tw.fragment(ROWS, tw.f32, 0) < 1, 1)

    [(rule, message, _)] = said(author)
    assert (rule, message) == ("dtype", "max of boolean less")


@pytest.mark.parametrize(
    ("shape", "nearest"),
    [
        ((8, 64), "tw.redistribute(y, like=x, scratch=tw.shared((8, 64), tw.f32))"),
        ((8, 1), "the result of a reduction of x, or tw.load(tensor, x.distribution.projected((8, 1)))"),
        ((8, 32), "fragments of shape (8, 64), or 1 along dimensions to broadcast"),
    ],
)
def test_unequal_maps_show_both_and_what_would_do(shape: tuple[int, int], nearest: str) -> None:
    def author():
        x = tw.fragment(ROWS, tw.f32, 0)
        y = tw.fragment(tw.raked(shape, (8, 1), 1, 1), tw.f32, 0)
        x - y

    [(rule, message, found)] = said(author)
    assert rule == "elementwise"
    assert "x: threads (8 along 1 by 8, 4 along 0 by 2), values (8 along 1 by 1, 2 along 0 by 1)" in message
    assert "y: threads (8 along 0 by 1)" in message
    assert found == nearest


def test_two_vectors_make_no_tile() -> None:
    def author():
        x = tw.fragment(ROWS, tw.f32, 0)
        tw.reduce_sum(x, 0) + tw.reduce_sum(x, 1)

    [(rule, message, _)] = said(author)
    assert rule == "elementwise"
    assert "(1, 64)" in message
    assert "(8, 1)" in message


def test_a_map_whose_values_other_threads_hold() -> None:
    def author():
        x = tw.fragment(MMA.c(), tw.f16, 0)
        tw.redistribute(x, MMA.a(32))

    [(rule, message, nearest)] = said(author)
    assert rule == "redistribute"
    assert "which has threads (4 along 1 by 2, 8 along 0 by 1" in message
    assert nearest == "through shared memory: scratch=tw.shared((32, 32), tw.f16)"


def test_a_map_of_another_shape() -> None:
    def author():
        x = tw.fragment(ROWS, tw.f16, 0)
        tw.redistribute(x, MMA.c())

    [(rule, message, _)] = said(author)
    assert rule == "redistribute"
    assert "box of (32, 32) at (0, 0) is not inside x: (8, 64)" in message


def test_integers_of_the_kernel_stand_beside_every_number() -> None:
    def author(n):
        tw.fragment(ROWS, tw.f32, 0) * n
        tw.coordinates(ROWS, 0) * n

    assert said(author) == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: tw.reduce_sum(x, 2), "dim=2 of a tile of shape (8, 64)"),
        (lambda x: tw.coordinates(x, -3), "dim=-3 of a tile of shape (8, 64)"),
        (lambda x: tw.reduce_max(x, 1, block=24), "nearest legal choice: block=16"),
        (lambda x: tw.reduce_max(x, 1, block=8, per_thread=True), "exclude each other"),
        (
            lambda x: tw.reduce_sum(tw.fragment(ACROSS, tw.f32), 1, scratch=tw.shared((8, 1), tw.f32)),
            "nearest legal choice: tw.shared((8, 2), tw.f32)",
        ),
    ],
)
def test_refused_at_once(call, message: str) -> None:
    def author():
        call(tw.fragment(ROWS, tw.f32, 0))

    with pytest.raises(tw.TraceError) as refused:
        said(author)
    assert message in str(refused.value)
