"""If results of dataflow kernels share memory with operands, the launch is refused, or right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import tilewright as tw
from tilewright.checking.flows import compare_flow
from tilewright.runtime.backends import backend_named

TARGETS = ("reference", "cpu")
SHAPE = (70, 45, 33)


@tw.kernel(A="M K", B="K N", R="M N", bias="N", D="M N")
def layer(A, B, R, bias, D):
    for m, n in tw.tiles(D):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        D[m, n] = acc + 2 * R[m, n] + bias[n]


@tw.kernel(A="M K", B="K N", R="N M", D="M N")
def across(A, B, R, D):
    for m, n in tw.tiles(D):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        D[m, n] = acc + R[n, m].T


@tw.kernel(A="M K", B="K N", C="M N", D="M N", s="M")
def several(A, B, C, D, s):
    for m, n in tw.tiles(D):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc
        D[m, n] = acc * s[m][:, None]


def draw(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def arguments(m: int = SHAPE[0], n: int = SHAPE[1], k: int = SHAPE[2]) -> dict[str, Any]:
    return {"A": draw(m, k), "B": draw(k, n), "R": draw(m, n), "bias": draw(n), "D": draw(m, n)}


def run_and_compare(kernel: Any, target: str, **given: Any) -> None:
    """Launch with D in R's memory, if possible, and compare with the flow's results on a copy."""
    read = {name: array.copy() for name, array in given.items() if name != "D"}
    flow = kernel.flow(*given.values())
    assert kernel(**given, target=target).target == target
    assert (found := compare_flow(flow, {"D": given["D"]}, read)).ok, found


@pytest.mark.parametrize("target", TARGETS)
def test_an_output_that_is_an_operand_of_the_product_is_refused(target: str) -> None:
    square = arguments(64, 64, 64)
    before = {name: array.copy() for name, array in square.items()}
    for name in ("A", "B"):
        with pytest.raises(tw.LaunchError, match=rf"kernel layer: D and {name} share memory.*another array"):
            layer(**{**square, "D": square[name]}, target=target)
    wide = draw(70, 100)
    given = arguments() | {"A": wide[:, :33], "D": wide[:, 30:75]}
    with pytest.raises(tw.LaunchError, match="D and A share memory"):
        layer(**given, target=target)
    assert all((square[name] == array).all() for name, array in before.items())
    run_and_compare(layer, target, **(given | {"D": wide[:, 33:78]}))  # rows interleave, elements do not


@pytest.mark.parametrize("target", TARGETS)
def test_a_known_launch_looks_again_where_arrays_lie(target: str) -> None:
    """The second call has the same plan and other addresses."""
    square, bound = arguments(64, 64, 64), layer.bind()
    memory = draw(4 * 64 * 64)
    square["A"] = memory[: 64 * 64].reshape(64, 64)
    bound(*square.values(), target=target)
    for first in (64 * 32, 0):
        square["D"] = memory[first : first + 64 * 64].reshape(64, 64)
        for _ in range(2):
            with pytest.raises(tw.LaunchError, match="D and A share memory"):
                bound(*square.values(), target=target)
    square["D"] = memory[64 * 64 : 2 * 64 * 64].reshape(64, 64)
    bound(*square.values(), target=target)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_added_to_the_sums_may_be_the_output(target: str) -> None:
    given = arguments()
    for _ in range(2):
        given["D"] = given["R"] = draw(*SHAPE[:2])
        run_and_compare(layer, target, **given)
    for square in (arguments(64, 64), arguments(1)):
        run_and_compare(layer, target, **(square | {"D": square["R"]}))
    row = arguments(1)  # the stride of the only row counts for nothing
    row["D"] = as_strided(row["R"], row["R"].shape, (400, 4))
    run_and_compare(layer, target, **row)


@pytest.mark.parametrize("target", TARGETS)
def test_transposed_as_it_is_read_the_output_may_be_added(target: str) -> None:
    d = draw(64, 64)
    given = {"A": draw(64, 9), "B": draw(9, 64)}
    run_and_compare(across, target, **given, R=d.T, D=d)
    with pytest.raises(tw.LaunchError, match="D and R share memory"):
        across(**given, R=d, D=d, target=target)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_read_in_another_place_than_it_is_stored_is_refused(target: str) -> None:
    given = arguments()
    shifted = draw(71, 45)
    with pytest.raises(tw.LaunchError, match="D and R share memory"):
        layer(**(given | {"R": shifted[:-1], "D": shifted[1:]}), target=target)
    with pytest.raises(tw.LaunchError, match="D and bias share memory"):
        layer(**(given | {"bias": given["D"][3]}), target=target)
    # One row that all rows of a tile read, which only one of them stores.
    row = arguments(1)
    with pytest.raises(tw.LaunchError, match="D and bias share memory"):
        layer(**(row | {"bias": row["D"][0]}), target=target)
    with pytest.raises(tw.LaunchError, match="D and R share memory"):
        layer(**(given | {"R": given["D"].view(np.float16)[:, :45]}), target=target)


@pytest.mark.parametrize("target", TARGETS)
def test_two_results_do_not_share_memory(target: str) -> None:
    given = {"A": draw(64, 9), "B": draw(9, 45)}
    both = draw(64, 45)
    with pytest.raises(tw.LaunchError, match=r"C and D share memory.*the kernel stores both"):
        several(**given, C=both, D=both, s=draw(64), target=target)
    with pytest.raises(tw.LaunchError, match="D and s share memory"):
        several(**given, C=draw(64, 45), D=both, s=both[:, 0], target=target)


def test_prepared_launches_are_checked_once_and_for_all() -> None:
    square = arguments(64, 64, 64)
    with pytest.raises(tw.LaunchError, match="D and A share memory"):
        layer.bind().prepare(*(square | {"D": square["A"]}).values(), target="cpu")


def test_nothing_is_compiled_for_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    square = arguments(64, 64, 64)

    def compiled(*arguments: Any) -> Any:
        raise AssertionError("it was compiled")

    monkeypatch.setattr(type(backend_named("cpu")), "compile", compiled)
    with pytest.raises(tw.LaunchError, match="D and A share memory"):
        layer.bind()(*(square | {"D": square["A"]}).values(), target="cpu")
