"""Indices that neighbours share, ``scale[m // 4, n]``: their meaning, and their requirements."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.dataflow.evaluate import evaluate
from tilewright.dataflow.parser import parse_flow
from tilewright.dataflow.printer import print_flow

from .flows import recorded, spec

RANDOM = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, np.float32)


def by_blocks(X, scale, bias, Y):
    tw.require(scale.shape[0] == tw.ceil_div(X.shape[0], 4), "a row of scales for each 4 rows")
    tw.require(scale.shape[1] == tw.ceil_div(X.shape[1], 2 * 3), "a column of scales for each 6 columns")
    for m, n in tw.tiles(Y):
        Y[m, n] = X[m, n] * scale[m // 4, n // 2 // 3] + bias[n]


def test_neighbours_that_share_an_element() -> None:
    x, scale, bias = normal(9, 13), normal(3, 3), normal(13)
    dims = {"X": "M N", "scale": "R S", "bias": "N", "Y": "M N"}
    flow = recorded(by_blocks, dims, **{name: spec(tw.f32, len(of.split())) for name, of in dims.items()})
    assert parse_flow(print_flow(flow)) == flow
    wanted = x * scale.repeat(4, 0)[:9].repeat(6, 1)[:, :13] + bias
    [found] = evaluate(flow, {"X": x, "scale": scale, "bias": bias}).values()
    assert np.allclose(found, wanted, rtol=1e-6)
    with pytest.raises(tw.LaunchError, match="a row of scales for each 4 rows"):
        evaluate(flow, {"X": x, "scale": scale[:2], "bias": bias})


def without_a_word(X, scale, Y):
    for m, n in tw.tiles(Y):
        Y[m, n] = X[m, n] * scale[m // 4, n]


def test_whether_there_are_as_many_as_are_shared_must_be_known() -> None:
    with pytest.raises(tw.TraceError, match=r"m // 4 runs over .*; nearest legal choice: tw.require\(scale"):
        recorded(without_a_word, {"X": "M N", "scale": "R N", "Y": "M N"})


# ---------------------------------------------------------------- whole rows of one extent


@tw.kernel(Q="M T", K="T T", V="T T", R="M T", bias="T", O="M T", P="M T")
def square(Q, K, V, R, bias, O, P, *, rows):
    """Attention whose keys are as many as their elements: scores vary along a second row of this extent."""
    if rows:
        for m in tw.tiles(O.shape[0]):
            s = R[m] + Q[m] @ K.T + bias
            P[m] = tw.softmax(s)
    else:
        for m, n in tw.tiles(O):
            O[m, n] = tw.softmax(Q[m] @ K.T + R[m]) @ V[:, n]


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("rows", [True, False])
def test_whole_rows_of_a_square_array_meet_others_of_their_extent(rows: bool, target: str) -> None:
    rng = np.random.default_rng(0)
    q, k, v, r = (rng.standard_normal(shape, np.float32) for shape in ((9, 13), (13, 13), (13, 13), (9, 13)))
    bias, o, p = rng.standard_normal(13, np.float32), *np.full((2, 9, 13), np.nan, np.float32)
    kernel = square.bind(rows=rows)
    arrays = {"Q": q, "K": k, "V": v, "R": r, "bias": bias}
    wide = {name: one.astype(np.float64) for name, one in arrays.items()}
    power = np.exp(wide["Q"] @ wide["K"].T + wide["R"] + rows * wide["bias"])
    exact = power / power.sum(1, keepdims=True)
    exact = exact if rows else exact @ wide["V"]
    kernel(*arrays.values(), o, p, target=target)
    # A score is off by as much as its power, relatively; weights sum to 1.
    room = 2.0**-24 * 16 * (3 + (np.abs(wide["Q"]) @ np.abs(wide["K"]).T).max())
    room *= 1 if rows else np.abs(wide["V"]).max()
    assert (np.abs((p if rows else o) - exact) <= room).all()
    made = tw.ir.evaluate(kernel.flow(*arrays.values(), o, p), arrays)
    assert np.allclose(made["P" if rows else "O"], exact, rtol=0, atol=room)
