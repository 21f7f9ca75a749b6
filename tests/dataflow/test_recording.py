"""The flow that a loop over tiles records."""

from __future__ import annotations

import pytest

import tilewright as tw
from tilewright.dataflow.nodes import ArrayPart, Map, Rearrange, Sum
from tilewright.lang.program import Program

from .flows import recorded, spec

DIMS = {"A": "M K", "B": "N K", "bias": "N", "C": "M N", "alpha": tw.f32}


def linear(A, B, bias, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        y = alpha * acc + bias[n]
        C[m, n] = y * tw.sigmoid(y)


def test_a_linear_layer() -> None:
    flow = recorded(linear, DIMS)
    assert [span.name for span in flow.tiles] == ["m", "n"]
    assert [parameter.name for parameter in flow.parameters] == ["A", "B", "bias", "C", "alpha"]
    [product] = flow.sums
    assert (product.span.name, product.dtype, product.variable) == ("k", tw.f32, "acc")
    assert isinstance(product.a, ArrayPart)
    assert isinstance(product.b, Rearrange)
    [store] = flow.stores
    assert isinstance(store.value, Map)
    assert store.value.function == "mul"
    assert store.location is not None
    assert store.location.frame.function == "linear"


def test_what_is_computed_twice_is_recorded_once() -> None:
    flow = recorded(linear, DIMS)
    biases = [node for node in flow.walk() if isinstance(node, ArrayPart) and node.operand.name == "bias"]
    assert len(biases) == 1


def test_the_dtype_of_a_sum_follows_from_its_operands() -> None:
    def product(A, B, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            C[m, n] = acc

    dims = {"A": "M K", "B": "N K", "C": "M N"}
    for given, made in [(tw.f16, tw.f32), (tw.f64, tw.f64), (tw.i8, tw.i32), (tw.c64, tw.c64)]:
        [found] = recorded(product, dims, A=spec(given), B=spec(given), C=spec(made)).sums
        assert isinstance(found, Sum)
        assert found.dtype == made


def test_a_flow_is_no_explicit_kernel() -> None:
    program = Program(linear, DIMS)
    specs = {p.name: spec(rank=len(p.dims)) for p in program.parameters if p.kind == "tensor"}
    with pytest.raises(tw.TraceError, match="a schedule must first expand it"):
        program.trace(specs)
