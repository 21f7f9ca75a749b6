"""Registers of reductions, broadcasts and other maps, against plain loops over every thread."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import LayoutError
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate
from tilewright.threads.distribution import Distribution, Mode, raked, registers
from tilewright.threads.registers import broadcast, indexed, reduction, register_digits, registers_of

SHAPE = (8, 16)


@st.composite
def spreads(draw: st.DrawFn) -> Distribution:
    bits = [(dim, 1 << bit) for dim in (0, 1) for bit in range(SHAPE[dim].bit_length() - 1)]
    order = draw(st.permutations(bits))
    count = draw(st.integers(0, len(order)))
    threads = [Mode(2, dim, step) for dim, step in order[:count]]
    threads.insert(draw(st.integers(0, count)), Mode(draw(st.sampled_from([1, 2])), None, 0))
    made = Distribution(SHAPE, tuple(threads), tuple(Mode(2, d, s) for d, s in order[count:]))
    return draw(st.sampled_from([made, made.canonical]))


KEEPS = {
    0: [(), ((2, 1),), ((2, 4),), ((2, 1), (2, 4)), ((8, 1),)],
    1: [(), ((4, 2),), ((2, 1), (4, 4)), ((2, 8),)],
}


@given(spreads(), st.sampled_from([(dim, keep) for dim, keeps in KEEPS.items() for keep in keeps]))
def test_reductions_combine_exactly_what_belongs_together(spread: Distribution, asked) -> None:
    dim, keep = asked
    plan = reduction(spread, dim, keep)
    assert plan.result.is_exact
    values = np.arange(SHAPE[0] * SHAPE[1]).reshape(SHAPE)
    held = [[{int(values[tuple(at)])} for at in row] for row in spread.table]
    kept, inner = registers_of(plan.kept, plan.result.size_values), registers_of(plan.reduced, plan.count)
    total = [[set().union(*(row[k + r] for r in inner)) for k in kept] for row in held]
    for digit in plan.lanes:
        apart = digit.weight
        while apart < digit.weight * digit.extent:
            total = [
                [a | b for a, b in zip(total[t], total[t ^ apart], strict=True)] for t in range(len(total))
            ]
            apart *= 2
    for thread, row in enumerate(plan.result.table):
        for register, at in enumerate(row):
            wanted = set()
            for where in np.ndindex(SHAPE):
                number, weight = 0, 1
                for extent, step in keep:
                    number += where[dim] // step % extent * weight
                    weight *= extent
                if number == at[dim] and where[1 - dim] == at[1 - dim]:
                    wanted.add(int(values[where]))
            assert total[thread][register] == wanted


@given(spreads(), st.sampled_from([(8, 1), (1, 16), (1, 1), (8, 16)]))
def test_broadcasts_read_the_register_of_their_coordinate(spread: Distribution, shape) -> None:
    part = spread.projected(shape)
    digits = broadcast(spread, part)
    assert digits is not None
    table = registers_of(digits, spread.size_values)
    expected = np.where(np.array(shape) == 1, 0, spread.table)
    assert (part.table[:, table] == expected).all()
    i = Sym("i", 0, spread.size_values - 1)
    spelled = indexed(digits, i)
    assert [int(evaluate(spelled, {i: n})) for n in range(spread.size_values)] == table.tolist()


@given(spreads(), spreads())
def test_other_maps_are_found_where_threads_hold_their_values(
    source: Distribution, target: Distribution
) -> None:
    held = [{tuple(at) for at in row} for row in source.table.tolist()]
    wanted = [{tuple(at) for at in row} for row in target.table.tolist()]
    possible = len(wanted) <= len(held) and all(w <= h for w, h in zip(wanted, held, strict=False))
    table = registers(source, target, (0, 0))
    found = register_digits(source, target, (0, 0))
    if table is None:
        assert found is None
        # Each thread might hold its values and still need other registers than its neighbours.
        assert not possible or source.size_values != target.size_values or held[: len(wanted)] != wanted
        return
    assert possible
    assert (source.table[: target.size_threads, list(table)] == target.table).all()
    if found is not None:
        assert (registers_of(found[1], target.size_values) + found[0] == np.array(table)).all()


def test_parts_of_a_tile_along_an_index() -> None:
    whole = Distribution((16, 64), (Mode(16, 0, 1),), (Mode(16, 1, 1), Mode(4, 1, 16)))
    part = Distribution((16, 16), (Mode(16, 0, 1),), (Mode(16, 1, 1),))
    k = Sym("k", 0, 3)
    found = register_digits(whole, part, (0, 16 * k))
    assert found is not None
    assert str(found[0]) == "16*k"
    assert register_digits(whole, part, (0, 16 * k + 16)) is None, "the last part ends outside"
    assert register_digits(whole, part, (0, Sym("m", 0, None) * 16)) is None


@pytest.mark.parametrize("keep", [((3, 1),), ((2, 3),), ((2, 4), (2, 4)), ((32, 1),)])
def test_digits_that_no_coordinate_has(keep) -> None:
    with pytest.raises(LayoutError, match="not digits of a coordinate below 16"):
        reduction(raked(SHAPE, (8, 4), 1, 1), 1, keep)


def test_digits_that_cut_a_mode() -> None:
    with pytest.raises(LayoutError, match="where a kept digit does"):
        reduction(Distribution((1, 12), (), (Mode(3, 1, 1), Mode(4, 1, 3))), 1, ((2, 1),))
