"""Flows print, and read back as the same flows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings

import tilewright as tw
from tilewright.dataflow.nodes import Flow, Literal, Map
from tilewright.dataflow.parser import parse_flow
from tilewright.dataflow.printer import print_flow

from .flows import recorded, spec
from .random_flows import flows
from .test_evaluate import attention
from .test_recording import DIMS, linear

pytestmark = pytest.mark.in_turns(3)


@settings(max_examples=400, deadline=None)
@given(flows())
def test_what_is_printed_reads_back(flow: Flow) -> None:
    text = print_flow(flow)
    found = parse_flow(text)
    assert found == flow
    assert hash(found) == hash(flow)
    assert print_flow(found) == text


ELEMENT = """# tilewright flow 1
flow('shifted')
M = size(low=0, high=2147483647, divisor=1)
A = array(f16, (M,))
C = array(f16, (M,))
require(5 < M + 1, 'index {} of dimension {} of A, whose extent is {}', 4, 0, M)
m = tile(M)
A_m: f16[m] = A[m]
A_view = view(A, (), Slice(at=(4,)))
A_: f16 = A_view[()]
add: f16[m] = add(A_m, A_)
C[m] = add
"""


def test_one_element_of_an_array_reads_back() -> None:
    assert print_flow(parse_flow(ELEMENT)) == ELEMENT


def test_a_linear_layer(golden: Callable[[str, str], None]) -> None:
    golden(print_flow(recorded(linear, DIMS)), "flow_linear.txt")


def test_a_fold(golden: Callable[[str, str], None]) -> None:
    dims = {"Q": "M D", "K": "N D", "V": "N E", "O": "M E", "scale": tw.f32}
    flow = recorded(attention, dims, **{name: spec(tw.f32) for name in "QKVO"})
    golden(print_flow(flow), "flow_attention.txt")


def test_the_author_s_lines() -> None:
    text = print_flow(recorded(linear, DIMS), locations=True)
    [line] = [line for line in text.splitlines() if " = sum(" in line]
    assert "# test_recording.py:" in line
    assert parse_flow(text) == recorded(linear, DIMS)


def test_flows_differ_by_what_they_compute_alone() -> None:
    first = recorded(linear, DIMS)
    [store] = first.stores
    named = replace(store.value, variable="another")
    assert Flow(first.name, first.parameters, first.tiles, (replace(store, value=named),)) == first
    value = store.value
    assert isinstance(value, Map)
    for other in (
        Map(value.dtype, value.axes, "add", value.given),
        Map(tw.f64, value.axes, value.function, value.given),
        Map(value.dtype, value.axes, value.function, (*value.given[:1], Literal(tw.f32, (), 1.0))),
    ):
        assert Flow(first.name, first.parameters, first.tiles, (replace(store, value=other),)) != first


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flow('f')\n", "starts with"),
        ("# tilewright flow 1\n", "line 2: expected flow"),
        ("# tilewright flow 1\nflow('f')\nx = nothing(3)\n", "line 3: unknown line 'nothing'"),
        ("# tilewright flow 1\nflow('f')\nx: f32 = frobnicate(3)\n", "line 3: unknown value 'frobnicate'"),
        ("# tilewright flow 1\nflow('f')\nx: f32[m] = exp(y)\n", "line 3: not a value: m"),
        ("# tilewright flow 1\nflow('f')\nx: f32 = 3\n", "line 3: not a value of a flow"),
        ("# tilewright flow 1\nflow('f')\nfor x in y: pass\n", "line 3: not a line of a flow"),
        ("# tilewright flow 1\nflow('f'\n", "line 2"),
        ("# tilewright flow 1\nflow('f')\nm = tile()\n", "line 3: m = tile()"),
    ],
)
def test_what_is_no_flow_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(tw.ParseError) as caught:
        parse_flow(text)
    assert message in str(caught.value)
