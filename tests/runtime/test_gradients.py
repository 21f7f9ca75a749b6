"""Every kernel call refuses tensors that require a gradient while gradients are recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LaunchError
from tilewright.runtime.arrays import describe, exact_key, locate

from .test_frameworks import Tensor, Torch, TorchDType
from .test_frameworks import torch as torch  # a fixture

MESSAGE = (
    r"the tensor requires a gradient, and kernels record none; nearest legal choice: "
    r"tensor.detach\(\), or a call under torch.no_grad\(\)"
)


class Held(Tensor):
    """A tensor in a NumPy array's memory, so that kernels can run on it."""

    __module__ = "torch"

    def __init__(self, array: np.ndarray[Any, Any], requires_grad: bool = False) -> None:
        strides = tuple(stride // array.itemsize for stride in array.strides)
        pointer = array.__array_interface__["data"][0]
        super().__init__(TorchDType("float32"), array.shape, strides, pointer, requires_grad=requires_grad)
        self.array = array

    @property
    def T(self) -> Held:  # noqa: N802
        return Held(self.array.T, self._requires_grad)

    def requires_grad_(self, recorded: bool = True) -> None:
        self._requires_grad = recorded


Held.__name__ = "Tensor"


@tw.kernel(X="M N", Y="M N")
def double(X, Y):
    tw.block_index(1)
    x = tw.load(X.tile((8, 8), (0, 0)).partition((8, 4)))
    tw.copy(x + x, Y.tile((8, 8), (0, 0)))


def made(requires_grad: bool = False) -> Held:
    return Held(np.ones((8, 8), np.float32), requires_grad)


def multiply(x: Held, y: Held) -> object:
    return tw.matmul(x, made(), out=y)


def multiply_by(x: Held, y: Held) -> object:
    return tw.matmul(made(), x, out=y)


def multiply_to_new(x: Held, y: Held) -> object:
    return tw.matmul(x, made())


def launch(x: Held, y: Held) -> object:
    return double(x, y)


def prepare(x: Held, y: Held) -> object:
    return double.bind().prepare(x, y)()


def check(x: Held, y: Held) -> object:
    return double.check(x, y)


CALLS = (multiply, multiply_by, multiply_to_new, launch, prepare, check)


@pytest.mark.parametrize("call", CALLS)
def test_it_is_refused_before_anything_is_written(call: Callable[[Held, Held], object]) -> None:
    y = made()
    y.array[...] = np.nan
    with pytest.raises(LaunchError, match=MESSAGE):
        call(made(requires_grad=True), y)
    assert np.isnan(y.array).all()


@pytest.mark.parametrize("call", [call for call in CALLS if call is not multiply_to_new])
def test_without_recording_it_is_served(call: Callable[[Held, Held], object], torch: Torch) -> None:
    """The same shapes are served before and afterwards."""
    for recording in (True, False, True):
        torch.recording = recording
        x, y = made(requires_grad=not recording), made()
        call(x, y)
        if call is not check:
            assert (y.array == (8 if call in (multiply, multiply_by) else 2)).all()
    with pytest.raises(LaunchError, match=MESSAGE):
        call(made(requires_grad=True), made())


def test_an_output_that_requires_a_gradient_is_refused() -> None:
    with pytest.raises(LaunchError, match=MESSAGE):
        tw.matmul(made(), made(), out=made(requires_grad=True))
    with pytest.raises(LaunchError, match=MESSAGE):
        double(made(), made(requires_grad=True))


def test_a_prepared_launch_looks_at_each_call(torch: Torch) -> None:
    x, y = made(), made()
    again = double.bind().prepare(x, y)
    again()
    x.requires_grad_()
    with pytest.raises(LaunchError, match=MESSAGE):
        again()
    torch.recording = False
    x.array[...] = 3
    again()
    assert (y.array == 6).all()
    torch.recording = True
    x.requires_grad_(False)
    again()


def test_a_launch_prepared_without_recording_is_refused_with_it(torch: Torch) -> None:
    torch.recording = False
    again = double.bind().prepare(made(requires_grad=True), made())
    again()
    torch.recording = True
    with pytest.raises(LaunchError, match=MESSAGE):
        again()
    torch.recording = False
    again()


def test_every_way_of_reading_refuses(torch: Torch) -> None:
    for read in (describe, exact_key, locate):
        with pytest.raises(LaunchError, match=MESSAGE):
            read(Tensor(requires_grad=True))
    torch.recording = False
    assert exact_key(Tensor(requires_grad=True)) == exact_key(Tensor())
