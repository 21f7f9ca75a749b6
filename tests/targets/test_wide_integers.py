"""Kernel integers beyond 2**31: values of variables, and products of extents."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.lang.specs import TensorSpec
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cpu, cuda

TARGETS = pytest.mark.parametrize("target", ["reference", "cpu"])


@tw.kernel(Y="N", n=int)
def accumulated(Y, n):
    """``Y[0] = high, Y[1] = low`` of ``n * 2**30 + n``, counted in a variable."""
    total = tw.var(0)
    for _ in tw.range(n):
        total.set(total.get() + 2**30)
    now = tw.let(total.get() + n)
    again = tw.let(now * 2)
    part = Y.tile((32,), (0,)).partition((32,))
    at = tw.coordinates(part.value.type.distribution, 0)
    high = tw.where(at == 0, again // 2 // 2**20, again // 2 % 2**20)
    tw.copy(tw.where(at < 2, high, 0), part)


@TARGETS
@pytest.mark.parametrize("n", [1, 2, 3, 8, 1000])
def test_variables_hold_64_bits(n: int, target: str) -> None:
    y = np.full(32, 7, np.int32)
    assert accumulated(y, n, target=target).target == target
    assert int(y[0]) * 2**20 + int(y[1]) == n * 2**30 + n


def test_variables_and_what_is_made_of_them_have_64_bits_in_text_for_cuda() -> None:
    kernel = accumulated.trace(np.zeros(32, np.int32), 3)
    listing = cuda.emit(kernel, "sm_90a")
    assert "long long total = 0;" in listing.text
    assert "const long long now = " in listing.text
    assert "const long long again = " in listing.text
    assert compile_text(listing.text, "sm_90a", listing.entry)


@tw.kernel(Y="N", m=int, n=int)
def counted(Y, m, n, *, how):
    part = Y.tile((32,), (0,)).partition((32,))
    y = tw.fragment(part, tw.i32, 0)
    if how == "let":
        size = tw.let(m * n)
        tw.copy(y + size // 2**20, part)
    elif how == "derived":
        size = tw.derived(m * n)
        tw.copy(y + size // 2**20, part)
    elif how == "range":
        for k in tw.range(m * n - 5, m * n):
            tw.copy(y + k // 2**20, part)
    else:
        tw.let(4 * m + n)
        tw.copy(y + 1, part)


@TARGETS
@pytest.mark.parametrize("how", ["let", "range"])
def test_products_of_sizes_past_32_bits_are_refused_at_launch(how: str, target: str) -> None:
    y = np.zeros(32, np.int32)
    assert counted(y, 2**15, 2**15, how=how, target=target).target == target
    assert y[0] == (1023 if how == "range" else 1024)
    with pytest.raises(tw.LaunchError, match=r"`m\*n` is 4294967296, and does not fit 32 bits; nearest"):
        counted(y, 2**16, 2**16, how=how, target=target)


@TARGETS
def test_derived_integers_have_64_bits(target: str) -> None:
    y = np.zeros(32, np.int32)
    assert counted(y, 2**20, 2**20, how="derived", target=target).target == target
    assert y[0] == 2**20


def test_sums_of_sizes_are_not_asked() -> None:
    assert counted.trace(np.zeros(32, np.int32), 1, 1, how="sum").guards == ()


@tw.kernel(X="M N", Y="M N")
def named_inside(X, Y):
    """An integer made of a loop's index and an extent that only the kernel knows."""
    for i in tw.range(X.shape[0]):
        at = tw.let(i * X.shape[1])
        part = X[i : i + 1].tile((1, 32), (0, 0)).partition((1, 32))
        tw.copy(tw.load(part) + (at - i * X.shape[1]), Y[i : i + 1].tile((1, 32), (0, 0)))


def test_integers_of_a_loop_have_64_bits_on_the_cpu() -> None:
    spec = TensorSpec(tw.i32, 2, 1, (1, 1), (1, 1), 16, True)
    text = cpu.emit(named_inside.trace(spec, spec), "x86-64-v3").text
    assert "for (Index i = 0;" in text
    assert "const Index at = " in text


@tw.kernel(Y="N", n=int)
def set_in_loop(Y, n):
    """``Y[0] = high, Y[1] = low`` of a product of a loop's index; a variable holds the last one."""
    total = tw.var(0)
    for i in tw.range(n):
        total.set(i * 70000 + i * n)
    now = total.get()
    part = Y.tile((32,), (0,)).partition((32,))
    at = tw.coordinates(part.value.type.distribution, 0)
    high = tw.where(at == 0, now // 2**20, now % 2**20)
    tw.copy(tw.where(at < 2, high, 0), part)


@pytest.mark.parametrize("target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("n", [3, 40000, 60000])
def test_products_of_indices_that_variables_take_have_64_bits(n: int, target: str) -> None:
    if target == "reference":
        n = n // 1000 + 1
    y = np.full(32, 7, np.int32)
    there = DeviceArray.of(y) if target == "cuda" else y
    assert set_in_loop(there, n, target=target).target == target
    if isinstance(there, DeviceArray):
        CUDA_DRIVER.synchronize()
        y = there.host()
    assert int(y[0]) * 2**20 + int(y[1]) == (n - 1) * (70000 + n)


def test_products_of_indices_that_variables_take_have_64_bits_in_text_for_cuda() -> None:
    listing = cuda.emit(set_in_loop.trace(np.zeros(32, np.int32), 3), "sm_90a")
    assert "total = 70000*(long long)i + (long long)i*(long long)n;" in listing.text
    assert compile_text(listing.text, "sm_90a", listing.entry)
