"""Derivatives of activations, element by element."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import f32
from tilewright.errors import TraceError, close_to, shown
from tilewright.functions.derivatives import DERIVATIVES
from tilewright.lang.dataflow.tiles import Tile
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.source import here
from tilewright.lang.verbs import verb


@verb
def derivative(activation: str, x: Fragment | Tile) -> Any:
    """``activation'(x)``: the factor by which an activation multiplies the gradient in a backward pass.

    The derivative of relu at 0 is 0.  It is composed of the other functions, computed in f32 or wider, and
    rounded once to the dtype of x.  Infinities give the limit, and NaN gives NaN.  In f32 the error is at
    most ``2**-19``.

    Args:
        activation: ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"``, ``"sigmoid"`` or ``"tanh"``.
        x: the values that the activation was applied to.

    Raises:
        TraceError: the activation is unknown.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def slopes(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     tw.copy(tw.derivative("silu", tw.load(part)), part)
        >>> x = np.float32([-1, 0, 1])
        >>> slopes(x, target="reference").target, x.astype(float).round(4).tolist()
        ('reference', [0.0723, 0.5, 0.9277])
    """
    if activation not in DERIVATIVES:
        near = close_to(activation, DERIVATIVES)
        raise TraceError(
            f"derivative of {shown(activation)}; choose one of {', '.join(DERIVATIVES)}{near}", here()
        )
    is_narrow = x.dtype.is_float and x.dtype.bits < f32.bits
    made = DERIVATIVES[activation](x.to(f32) if is_narrow else x, elementwise)
    return made.to(x.dtype) if is_narrow else made
