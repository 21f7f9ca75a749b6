"""How a kernel's arguments are packed: one buffer, C struct alignment, in launch order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from tilewright.ir.kernel import Kernel, ScalarParam, SizeParam
from tilewright.ir.passed import passed_params

_SCALAR_CODES = {
    **{"f64": "d", "f32": "f", "f16": "e", "i64": "q", "i32": "i", "u32": "I"},
    **{"i16": "h", "u16": "H", "i8": "b", "u8": "B", "boolean": "?"},
}


@dataclass(frozen=True)
class Packing:
    """A `struct` format with native alignment, and the byte offset of every argument.

    Example:
        >>> Packing(("P", "P", "i", "q")).offsets, Packing(("P", "P", "i", "q")).format
        ((0, 8, 16, 24), '@PPiq')
    """

    codes: tuple[str, ...]

    @cached_property
    def format(self) -> str:
        """The `struct` format string."""
        return "@" + "".join(self.codes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Byte offset of each argument."""
        sizes = {"P": 8, "q": 8, "d": 8, "i": 4, "I": 4, "f": 4, "e": 2, "h": 2, "H": 2, "b": 1, "B": 1, "?": 1}
        found, at = [], 0
        for code in self.codes:
            at = -(-at // sizes[code]) * sizes[code]
            found.append(at)
            at += sizes[code]
        return tuple(found)


def packing(kernel: Kernel) -> Packing:
    """The packing of a kernel's parameters."""
    codes = []
    for param in passed_params(kernel):
        if isinstance(param, SizeParam):
            codes.append("q" if param.bits == 64 else "i")
        elif isinstance(param, ScalarParam):
            codes.append(_SCALAR_CODES[param.value.dtype.name])
        else:
            codes.append("P")
    return Packing(tuple(codes))
