"""Complex numbers can be copied and filled; all targets refuse conversions with the same message."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LegalityError

from .broken import said, spec

PAIRS = [("c64", "f32"), ("f32", "c64"), ("c64", "c128"), ("c32", "c64"), ("i32", "c64")]


@tw.kernel(X="M N", Y="M N")
def moved(X, Y):
    tw.block_index(1)
    tw.copy(X.tile((4, 8), (0, 0)), Y.tile((4, 8), (0, 0)), threads=(4, 8))


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_target_refuses_a_converting_copy_alike(source: str, target: str) -> None:
    x, y = (np.zeros((4, 8), tw.dtype(name).numpy) for name in (source, target))
    texts = []
    for place in ("reference", "cpu"):
        with pytest.raises(LegalityError) as caught:
            moved(x, y, target=place)
        texts.append(str(caught.value).replace(place, "here"))
    kinds = [tw.TensorSpec(tw.dtype(name), 2, 1, (4, 8), (8, 1), 16, False) for name in (source, target)]
    with pytest.raises(LegalityError) as caught:
        moved.compile(*kinds, target="cuda", arch="sm_80")
    texts.append(str(caught.value).replace("cuda", "here"))
    assert texts[0] == texts[1] == texts[2]
    assert f"converts {source} to {target}; complex numbers are not converted" in texts[0]
    assert f"nearest legal choice: {source} on both sides" in texts[0]


@pytest.mark.parametrize(("source", "target"), [("c64", "f32"), ("f32", "c64"), ("c64", "c64")])
@pytest.mark.parametrize("saturate", [False, True])
def test_conversions_in_registers_too(source: str, target: str, saturate: bool) -> None:
    def author(A):
        tw.load(A.tile((8, 8), (0, 0)).partition((8, 4))).to(target, saturate=saturate)

    name = "saturate" if saturate else "convert"
    message = (
        f"elementwise of loaded to {name} converts {source} to {target}; complex numbers are not converted"
    )
    wanted = [] if source == target else [("dtype", message, f"{source} on both sides")]
    assert said(author, A=spec(tw.dtype(source))) == wanted


def test_a_number_of_the_kernel_does_not_fill_a_complex_fragment() -> None:
    def author(alpha):
        tw.fill(tw.fragment(tw.raked((4, 8), (4, 8), 1, 1), tw.c64), alpha)

    [(rule, message, _)] = said(author, declared={"alpha": tw.f32})
    assert (rule, "converts f32 to c64" in message) == ("dtype", True)


@tw.kernel(Y="M N", Z="M N")
def filled(Y, Z, *, value):
    tw.block_index(1)
    spread = tw.raked((4, 8), (4, 8), 1, 1)
    x = tw.fragment(spread, Y.dtype)
    tw.fill(x, value)
    tw.copy(x, Y.tile((4, 8), (0, 0)))
    tw.copy(tw.fragment(spread, Y.dtype, fill=value), Z.tile((4, 8), (0, 0)))


@pytest.mark.parametrize("value", [0, -2.5, 1 / 3, 6e4, math.inf])
@pytest.mark.parametrize("dtype", ["c32", "c64", "c128"])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_complex_fragment_is_filled_with_a_real_number(dtype: str, value: float, target: str) -> None:
    element = tw.dtype(dtype)
    y, z = (np.frombuffer(b"\x55" * 32 * element.bytes, element.numpy).reshape(4, 8).copy() for _ in range(2))
    assert filled(y, z, value=value, target=target).target == target
    part = np.asarray(value, element.component.numpy)
    for made in (y, z):
        parts = made.view(part.dtype).reshape(-1, 2)
        assert (parts[:, 0] == part).all()
        assert (parts[:, 1] == 0).all()


@pytest.mark.parametrize(("dtype", "value", "nearest"), [("c32", 1e6, "65504.0"), ("c64", -1e39, "-3.40")])
def test_a_number_that_its_parts_make_infinite_is_refused_as_of_real_floats(
    dtype: str, value: float, nearest: str
) -> None:
    y = np.zeros((4, 8), tw.dtype(dtype).numpy)
    with pytest.raises(
        LegalityError, match=f"becomes infinite in {dtype}\\n  nearest legal choice: {nearest}"
    ):
        filled(y, y.copy(), value=value, target="reference")


@tw.kernel(X="N", Y="N")
def raised(X, Y):
    tw.copy(tw.load(X.tile((32,), (0,)).partition((32,))) + 1.5, Y.tile((32,), (0,)))


def test_a_real_number_beside_complex_ones_warns_of_nothing() -> None:
    x = np.arange(32).astype(np.complex64) * 1j
    y = np.zeros_like(x)
    with warnings.catch_warnings(action="error"):
        raised(x, y, target="reference")
    np.testing.assert_array_equal(y, x + np.float32(1.5))


def test_cuda_fills_complex_fragments_too() -> None:
    kind = tw.TensorSpec(tw.c64, 2, 1, (4, 8), (8, 1), 16, False)
    assert "2.5f" in filled.compile(kind, kind, value=2.5, target="cuda", arch="sm_80").source
