"""All elementwise functions by name."""

from __future__ import annotations

from tilewright.functions.activations import ACTIVATIONS
from tilewright.functions.arithmetic import ARITHMETIC
from tilewright.functions.circle import CIRCLE
from tilewright.functions.floats import FLOATING
from tilewright.functions.function import Function
from tilewright.functions.philox import RANDOM

FUNCTIONS: dict[str, Function] = {
    row.name: row for row in (*ARITHMETIC, *FLOATING, *CIRCLE, *ACTIVATIONS, *RANDOM)
}

COMPARISON = tuple(name for name, row in FUNCTIONS.items() if row.gives == "truth")
CONVERSION = tuple(name for name, row in FUNCTIONS.items() if row.gives == "asked")
