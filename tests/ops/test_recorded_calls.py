"""Calls that are planned and compiled, but not launched: what code without Python runs."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LaunchError
from tilewright.ops.replay import is_recorded, recorded_calls
from tilewright.runtime.host import PreparedCpu


def test_a_recorded_call_runs_nothing_until_its_image_does() -> None:
    """The image of a launch, with the addresses of other arrays, computes the product of these."""
    a, b = np.zeros((7, 5), np.float32), np.zeros((5, 9), np.float32)
    out = np.full((7, 9), 3, np.float32)
    (one,) = recorded_calls(tw.matmul, a, b, out=out, alpha=0.5, target="cpu")
    assert not is_recorded()
    assert out.min() == out.max() == 3
    assert one.record is not None
    (launch,) = one.record.launches
    assert isinstance(launch.prepared, PreparedCpu)
    image = launch.prepared.image(one.arguments(launch))
    rng = np.random.default_rng(1)
    given = {id(a): rng.standard_normal((7, 5), np.float32), id(b): rng.standard_normal((5, 9), np.float32)}
    given[id(out)] = out
    arguments = ctypes.create_string_buffer(image.arguments, len(image.arguments))
    held = [arguments]
    for at, place in enumerate(launch.places):
        if at in image.addresses:
            address = given[id(one.arrays[place])].ctypes.data
            ctypes.c_void_p.from_buffer(arguments, image.addresses[at]).value = address
    for offset, size, _ in image.workspaces:
        held.append(ctypes.create_string_buffer(size))
        ctypes.c_void_p.from_buffer(arguments, offset).value = ctypes.addressof(held[-1])
    board, scratch = (ctypes.c_longlong * 4)(), np.zeros(image.scratch_bytes + 64, np.uint8)
    entry = ctypes.CFUNCTYPE(None, *(ctypes.c_void_p,) * 3, ctypes.c_longlong)(image.entry)
    start = -(-scratch.ctypes.data // 64) * 64
    entry(ctypes.addressof(arguments), ctypes.addressof(board), start, image.blocks)
    exact = 0.5 * (given[id(a)].astype(np.float64) @ given[id(b)])
    bound = 8 * 2.0**-24 * (np.abs(given[id(a)]).astype(np.float64) @ np.abs(given[id(b)]))
    assert bool((np.abs(out - exact) <= bound).all())


def test_a_recorded_call_is_checked() -> None:
    a = np.zeros((7, 5), np.float32)
    with pytest.raises(LaunchError, match="matmul"):
        recorded_calls(tw.matmul, a, a, target="cpu")
    assert not is_recorded()
