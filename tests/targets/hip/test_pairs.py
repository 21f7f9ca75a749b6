"""All narrow numbers become halves two at a time, executed from the compiler's listing."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets.hip.prelude import PAIRS

from .executed import launched


@tw.kernel(X="N", Y="N")
def widened(X, Y):
    tw.copy(tw.load(X.tile((256,), (0,)).partition((64,))).to(tw.f16), Y.tile((256,), (0,)).partition((64,)))


@pytest.mark.parametrize("arch", ["gfx942", "gfx1151"])
@pytest.mark.parametrize("kind", [source for source, _ in PAIRS])
def test_every_number_is_widened_exactly(arch: str, kind: str) -> None:
    x = np.arange(256, dtype=np.uint8).view(tw.dtype(kind).numpy)
    y = np.full(256, 77, np.float16)
    made, run = launched(widened.bind(), arch, {"X": x, "Y": y})
    assert "two at a time" in made.source
    packed = {"f8e4m3": "v_pk_fma_f16", "f8e5m2": "", "i8": "v_pk_add_f16"}[kind]
    assert not packed or packed in run.mnemonics
    exact = x.astype(np.float32)
    np.testing.assert_array_equal(y, exact.astype(np.float16))
    numbers = ~np.isnan(exact)
    assert numbers.sum() == {"f8e4m3": 254, "f8e5m2": 250, "i8": 256}[kind]
    np.testing.assert_array_equal(np.signbit(y[numbers]), np.signbit(exact[numbers]))
