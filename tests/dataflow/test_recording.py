"""The flow that a loop over tiles records."""

from __future__ import annotations

import numpy as np
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


def test_parts_of_one_array_are_stored_apart() -> None:
    """Different integer indices name different elements, but those with different signs may name the same."""

    @tw.kernel(A="M K", B="N K", C="M T N")
    def two(A, B, C, *, second: int):
        for m, n in tw.tiles((C.shape[0], C.shape[2])):
            acc = tw.zeros(dtype=tw.f32)
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            C[m, 0, n] = acc
            C[m, second, n] = tw.relu(acc)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, (rows, 30)).astype(np.float32) for rows in (40, 50))
    right = a @ b.T
    for target in ("reference", "cpu"):
        c = np.full((40, 3, 50), np.nan, np.float32)
        two.bind(second=1)(a, b, c, target=target)
        assert (c[:, 0] == right).all()
        assert (c[:, 1] == np.maximum(right, 0)).all()
        assert np.isnan(c[:, 2]).all()
    flow = two.bind(second=1).flow(a, b, c)
    assert tw.ir.parse_flow(tw.ir.print_flow(flow)) == flow
    found = tw.ir.evaluate(flow, {"A": a, "B": b, "C": np.full_like(c, np.nan)})["C"]
    assert np.array_equal(found, c, equal_nan=True)
    for second in (0, -3):
        with pytest.raises(tw.TraceError, match="C is stored twice"):
            two.bind(second=second).flow(a, b, c)
