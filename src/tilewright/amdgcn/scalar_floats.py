"""Scalar instructions in floating point, which gfx11.5 has."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.amdgcn.compares import COMPARISONS
from tilewright.amdgcn.floats import FLOATS
from tilewright.amdgcn.scalars import ScalarRow

_SAME = ("add", "sub", "mul", "min", "max", "ceil", "floor", "trunc", "rndne", "fmamk", "fmaak")
_CONVERTED = ("f32_u32", "f32_i32", "u32_f32", "i32_f32", "f16_f32", "f32_f16")


def _rows() -> dict[str, ScalarRow]:
    rows: dict[str, ScalarRow] = {}
    for kind in ("f32", "f16"):
        for name in _SAME:
            of = FLOATS[f"v_{name}_{kind}"]
            rows[f"s_{name}_{kind}"] = ScalarRow(kind, of.operands, of.compute)
        fma: Any = FLOATS[f"v_fma_{kind}"].compute
        rows[f"s_fmac_{kind}"] = ScalarRow(
            kind, (kind, kind), lambda c, a, b, fma=fma: fma(a, b, c), accumulates=True
        )
        for form, (kinds, compute) in COMPARISONS.items():
            name, _, of_kind = form.rpartition("_")
            if of_kind == kind and name not in ("class", "f", "t", "tru"):
                rows[f"s_cmp_{form}"] = ScalarRow("", kinds, compute)
    for form in _CONVERTED:
        of = FLOATS[f"v_cvt_{form}"]
        rows[f"s_cvt_{form}"] = ScalarRow(form[:3], of.operands, of.compute)
    packed = FLOATS["v_cvt_pk_rtz_f16_f32"]
    rows["s_cvt_pk_rtz_f16_f32"] = ScalarRow("u32", packed.operands, packed.compute)
    rows["s_cvt_hi_f32_f16"] = ScalarRow(
        "f32", ("u32",), lambda a: (a >> np.uint32(16)).astype(np.uint16).view(np.float16).astype(np.float32)
    )
    return rows


SCALAR_FLOATS = _rows()
