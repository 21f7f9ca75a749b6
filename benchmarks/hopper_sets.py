"""Which forms of the Hopper GEMM are measured on which problems; the most telling sets first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from hopper_family import PLAIN, bias_gelu, residual
from hopper_form import Form

import tilewright as tw
from tilewright.runtime.kernel import Bound

KERNELS = {"bias_gelu": bias_gelu, "residual": residual}
LAYOUTS = {"": "nt", "n": "nn", "m": "tt", "mn": "tn"}
"""Operands that lie along M or N -> what BLAS calls the layout of row-major arrays."""

RIVAL = "cuBLAS"
"""Beside which forms are timed."""

NORMS = {"bf16": 3e-3, "f16": 1e-3, "f32": 2e-3, "f8e4m3": 3e-3, "i8": 0.0}
NOT_PROMOTED = 3e-2
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-23, "i32": 0.0}


@dataclass(frozen=True)
class Case:
    """A problem and the forms that are tried on it.

    Args:
        set: the set that it belongs to.
        shape: M, N and K.
        forms: by name.
        dtype: of A and B.
        out: of C.
        along: operands that lie along M or N.
        kernel: ``"plain"``, or a kernel that does more.
        seconds: for which it is timed.
    """

    set: str
    shape: tuple[int, int, int]
    forms: Mapping[str, Form]
    dtype: str = "bf16"
    out: str = "bf16"
    along: str = ""
    kernel: str = "plain"
    seconds: float = 1.5

    def __str__(self) -> str:
        m, n, k = self.shape
        return f"{self.dtype} {LAYOUTS[self.along]} " + (f"{m}³" if m == n == k else f"{m}x{n}x{k}")

    def first(self, count: int | None) -> Case:
        """With the first forms only."""
        return replace(self, forms=dict(islice(self.forms.items(), count)))

    def bind(self, name: str) -> Bound:
        """The kernel in one of its forms."""
        kernel: Any = KERNELS.get(self.kernel) or PLAIN[self.along]
        bound: Bound = kernel.bind(form=self.forms[name].filled(tw.dtype(self.out)))
        return bound

    @property
    def arrays(self) -> list[tuple[str, tuple[int, ...]]]:
        """Element type and shape of each array, as the kernel takes them."""
        m, n, k = self.shape
        a = (k, m) if "m" in self.along else (m, k)
        b = (k, n) if "n" in self.along else (n, k)
        extra = {"bias_gelu": [(self.out, (n,))], "residual": [(self.out, (m, n))]}.get(self.kernel, [])
        return [(self.dtype, a), (self.dtype, b), *extra, (self.out, (m, n))]

    def norm(self, form: Form) -> float:
        """How far the result may be off in norm."""
        coarse = self.dtype == "f8e4m3" and not form.period
        return NOT_PROMOTED if coarse else NORMS[self.dtype]

    def bounds(self, form: Form) -> tuple[float, float]:
        """How far an element may be off: of itself, and of the sum of its products' sizes.

        An atom adds its products to the sum with so many bits as `sum_bits` says; GELU's slope is below 1.13.
        """
        atom = tw.atoms.wgmma(self.dtype, form.columns)
        steps = -(-self.shape[2] // atom.shape[2])
        if atom.sum_bits is None:
            return 0.0, 0.0
        if form.period:
            depth = form.period * 128 // tw.dtype(self.dtype).bytes
            summed = (
                -(-depth // atom.shape[2]) * 2.0 ** (2 - atom.sum_bits) + self.shape[2] / depth * 2.0**-23
            )
        else:
            summed = steps * 2.0 ** (2 - atom.sum_bits)
        operands = 2.0**-9 if atom.precision == 10 else 0.0
        return ROUNDING[self.out] + 2.0**-20, 1.13 * (summed + operands) + 2.0**-20


SQUARES = tuple((n, n, n) for n in (4096, 8192, 16384))
LAYERS = tuple((8192, n, k) for n, k in ((4096, 4096), (14336, 4096), (4096, 14336), (28672, 8192)))

PING = Form(columns=192, rows=128, pingpong=True)
LARGE: dict[str, Form] = {
    "128x256": Form(),
    "128x256 cluster 2,1": Form(cluster=(2, 1)),
    "128x256 cluster 1,2": Form(cluster=(1, 2)),
    "128x192 ping-pong": PING,
    "128x192 ping-pong 2,1": replace(PING, cluster=(2, 1)),
    "128x192 ping-pong 1,2": replace(PING, cluster=(1, 2)),
    "256x192": Form(columns=192, rows=128),
    "256x192 cluster 2,1": Form(columns=192, rows=128, cluster=(2, 1)),
    "256x128": Form(columns=128, rows=128),
    "256x128 cluster 1,2": Form(columns=128, rows=128, cluster=(1, 2), registers=(56, 224)),
    "256x160, direct": Form(columns=160, rows=128, buffers=0),
    "128x192": Form(columns=192, buffers=3),
    "128x192 cluster 2,1": Form(columns=192, buffers=3, cluster=(2, 1)),
    "192x192, 3 groups": Form(columns=192, groups=3, registers=(32, 160)),
    "128x128 ping-pong 2,1": Form(columns=128, rows=128, pingpong=True, cluster=(2, 1)),
    "64x256 ping-pong 2,1": Form(pingpong=True, cluster=(2, 1)),
    "128x160 ping-pong 2,1, direct": Form(columns=160, rows=128, pingpong=True, cluster=(2, 1), buffers=0),
    "128x256 band 4": Form(band=4),
    "128x256 band 16": Form(band=16),
    "128x256 band 16 snake": Form(band=16, snake=True),
    "128x256 band 8 of n": Form(band=8, band_along="n"),
    "128x256 cleared": Form(fresh=False),
    "128x256 all blocks": Form(even=False),
    "128x256 3 stages, whole tile": Form(buffers=4, batch=4),
    "128x256 release at once": Form(pending=0),
    "128x256 2,1 band 16": Form(cluster=(2, 1), band=16),
    "128x192 ping-pong 2,1 band 16": replace(PING, cluster=(2, 1), band=16),
}

SINGLE = {"persistent": False, "registers": None}
SMALL: dict[str, Form] = {
    "128x256": Form(),
    "128x128": Form(columns=128),
    "128x128 once": Form(columns=128, **SINGLE),
    "128x128 cluster 2,1 once": Form(columns=128, cluster=(2, 1), **SINGLE),
    "128x128 cluster 1,2 once": Form(columns=128, cluster=(1, 2), **SINGLE),
    "128x128 cluster 2,2 once": Form(columns=128, cluster=(2, 2), **SINGLE),
    "128x192": Form(columns=192, buffers=3),
    "128x192 once": Form(columns=192, buffers=3, **SINGLE),
    "128x192 cluster 2,1 once": Form(columns=192, buffers=3, cluster=(2, 1), **SINGLE),
    "128x256 cluster 2,1 once": Form(cluster=(2, 1), **SINGLE),
    "256x128 once": Form(columns=128, rows=128, **SINGLE),
    "128x64 once": Form(columns=64, **SINGLE),
    "128x96 once, direct": Form(columns=96, buffers=0, **SINGLE),
    "64x64 once": Form(columns=64, groups=1, **SINGLE),
    "64x64 cluster 2,1 once": Form(columns=64, groups=1, cluster=(2, 1), **SINGLE),
    "64x64 cluster 2,2 once": Form(columns=64, groups=1, cluster=(2, 2), **SINGLE),
    "64x64 once, direct": Form(columns=64, groups=1, buffers=0, **SINGLE),
    "64x32 once, direct": Form(columns=32, groups=1, buffers=0, **SINGLE),
    "64x128 once": Form(columns=128, groups=1, **SINGLE),
    "64x256 once": Form(columns=256, groups=1, **SINGLE),
    "128x32 once, direct": Form(columns=32, buffers=0, **SINGLE),
}

MAJORS = {
    name: LARGE[name]
    for name in ("128x256", "128x256 cluster 2,1", "128x192 ping-pong 2,1", "256x192", "256x128")
} | {"256x128 cluster 1,2": LARGE["256x128 cluster 1,2"], "128x192 ping-pong": PING}

RAGGED = {
    name: LARGE[name]
    for name in (
        *("128x256", "128x256 cluster 2,1", "128x256 cluster 1,2", "128x192 ping-pong 2,1", "256x192"),
        *("256x192 cluster 2,1", "256x128", "192x192, 3 groups", "128x192 ping-pong"),
    )
}

DTYPES = {
    name: LARGE[name]
    for name in (
        *("128x256", "128x256 cluster 2,1", "128x192", "256x128", "256x128 cluster 1,2", "256x192"),
        *("256x192 cluster 2,1", "128x192 ping-pong", "128x192 ping-pong 2,1"),
    )
}

PROMOTED = {
    f"{name}, promoted every {period}": replace(form, period=period)
    for period in (1, 4)
    for name, form in {
        "128x128": Form(columns=128),
        "128x128 cluster 2,1": Form(columns=128, cluster=(2, 1)),
        "128x128 cluster 2,2": Form(columns=128, cluster=(2, 2)),
        "128x192": Form(columns=192, buffers=3),
        "128x192 cluster 2,1": Form(columns=192, buffers=3, cluster=(2, 1)),
        "192x128, 3 groups 2,1": Form(columns=128, groups=3, registers=(40, 152), cluster=(2, 1)),
        "64x192 ping-pong 2,1": Form(columns=192, pingpong=True, cluster=(2, 1)),
        "128x128 cluster 1,2": Form(columns=128, cluster=(1, 2)),
    }.items()
} | {
    f"128x128 two partials{name}": Form(columns=128, period=1, partials=2, cluster=cluster)
    for name, cluster in {"": (1, 1), " 2,1": (2, 1), " 1,2": (1, 2), " 2,2": (2, 2)}.items()
}
PROMOTED["128x128 cluster 2,1, cleared every 1"] = Form(columns=128, period=1, fresh=False, cluster=(2, 1))

FUSED = {
    name: replace(form, slice=8 if form.pingpong else 16)
    for name, form in {
        **{
            name: LARGE[name] for name in ("128x256", "128x256 cluster 2,1", "256x128", "256x128 cluster 1,2")
        },
        **{name: LARGE[name] for name in ("128x192 ping-pong", "128x192 ping-pong 2,1")},
        "128x128 ping-pong": Form(columns=128, rows=128, pingpong=True),
        "128x128 ping-pong 2,1": LARGE["128x128 ping-pong 2,1"],
    }.items()
}

SIZES = tuple((n, n, n) for n in (512, 1024, 2048))
FEW_ROWS = tuple((m, n, 4096) for m in (256, 1024) for n in (4096, 14336))

SETS: dict[str, list[Case]] = {
    "large": [Case("large", shape, LARGE, seconds=3.0) for shape in (*SQUARES[:2], *LAYERS, SQUARES[2])],
    "small": [Case("small", shape, SMALL, seconds=1.0) for shape in (*SIZES, *FEW_ROWS)],
    "ragged": [Case("ragged", shape, RAGGED) for shape in ((4104, 4088, 4072),)]
    + [Case("ragged", (1000, 1000, 1000), SMALL, seconds=1.0)],
    "majors": [
        Case("majors", shape, MAJORS, along=along)
        for along in ("n", "mn", "m")
        for shape in (SQUARES[0], SQUARES[1], LAYERS[1])
    ],
    "fp8": [
        Case("fp8", (n, n, n), {**PROMOTED, **DTYPES}, dtype="f8e4m3", seconds=2.0)
        for n in (4096, 8192, 2048)
    ],
    "fused": [
        Case("fused " + kernel, shape, FUSED, kernel=kernel)
        for kernel in ("bias_gelu", "residual")
        for shape in (SQUARES[1], SQUARES[0])
    ],
    "tf32": [Case("tf32", (n, n, n), DTYPES, dtype="f32", out="f32") for n in (4096, 8192)],
    "i8": [Case("i8", (n, n, n), DTYPES, dtype="i8", out="i32") for n in (2048, 4096, 8192)],
    "f16": [Case("f16", shape, MAJORS, dtype="f16", out="f16") for shape in (SQUARES[0], SQUARES[1])],
}
"""By name; in the order in which they are measured."""
