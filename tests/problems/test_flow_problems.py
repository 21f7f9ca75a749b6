"""Some random dataflow kernels; `scripts/try_members.py` tries any number of them."""

from __future__ import annotations

import pytest

from .elementwise_problems import carried_out as without_product
from .elementwise_problems import in_order, reduced, scanned
from .flow_problems import row_sums, several_loops
from .group_problems import added, carried_out
from .window_problems import carried_out as of_windows


@pytest.mark.parametrize(("target", "count"), [("reference", 6), ("cpu", 2)])
def test_random_kernels_with_several_loops(target: str, count: int) -> None:
    assert [wrong for number in range(count) if (wrong := several_loops(number, target))] == []


@pytest.mark.parametrize(("target", "count"), [("reference", 6), ("cpu", 2)])
def test_random_sums_of_rows(target: str, count: int) -> None:
    assert [wrong for number in range(count) if (wrong := row_sums(number, target))] == []


@pytest.mark.parametrize(("target", "count"), [("reference", 12), ("cpu", 2)])
def test_random_groups_along_k(target: str, count: int) -> None:
    assert [wrong for number in range(count) if (wrong := carried_out(number, target))] == []


@pytest.mark.parametrize(("target", "count"), [("reference", 10), ("cpu", 2)])
def test_random_rows_that_are_added(target: str, count: int) -> None:
    assert [wrong for number in range(count) if (wrong := added(number, target))] == []


@pytest.mark.parametrize(("target", "count"), [("reference", 6), ("cpu", 2)])
def test_random_windows(target: str, count: int) -> None:
    assert [wrong for number in range(count) if (wrong := of_windows(number, target))] == []


# One problem of each kernel; processors compile some of them.
@pytest.mark.parametrize(
    ("target", "numbers"), [("reference", (0, 1, 2, 3, 4, 5, 11, 15, 18)), ("cpu", (0, 1))]
)
def test_random_flows_without_a_product(target: str, numbers: tuple[int, ...]) -> None:
    assert [wrong for number in numbers if (wrong := without_product(number, target))] == []


@pytest.mark.parametrize(("target", "numbers"), [("reference", (0, 2, 3, 4, 5, 18)), ("cpu", (3, 4))])
def test_random_prefix_sums(target: str, numbers: tuple[int, ...]) -> None:
    assert [wrong for number in numbers if (wrong := scanned(number, target))] == []


@pytest.mark.parametrize(("target", "count"), [("reference", 6), ("cpu", 2)])
def test_random_rows_that_are_added_in_order(target: str, count: int) -> None:
    assert [wrong for number in range(count) if (wrong := in_order(number, target))] == []


@pytest.mark.parametrize(("target", "numbers"), [("reference", (0, 2, 3, 4, 5, 18)), ("cpu", (2, 18))])
def test_random_reductions_without_a_product(target: str, numbers: tuple[int, ...]) -> None:
    assert [wrong for number in numbers if (wrong := reduced(number, target))] == []
