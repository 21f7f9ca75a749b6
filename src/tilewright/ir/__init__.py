r"""The intermediate representation: kernels as typed operations, which print, read back and are verified.

>>> import tilewright as tw
>>> kernel = tw.ir.parse_kernel("# tilewright ir 1\nkernel('nothing', threads=32, lanes=32)\nbarrier()\n")
>>> tw.ir.violations(kernel), [op.name for op in kernel.body.walk()]
([], ['barrier'])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tilewright.namespaces import namespace, submodule

if TYPE_CHECKING:
    from tilewright.ir.kernel import Kernel
    from tilewright.ir.op import Block, Op
    from tilewright.ir.parser import parse_kernel
    from tilewright.ir.printer import print_kernel
    from tilewright.ir.types import (
        BarrierType,
        FragmentType,
        Memory,
        ScalarType,
        TensorType,
        Value,
        VariableType,
    )
    from tilewright.ir.verify import violations

__all__ = [
    "BarrierType",
    "Block",
    "FragmentType",
    "Kernel",
    "Memory",
    "Op",
    "ScalarType",
    "TensorType",
    "Value",
    "VariableType",
    "parse_kernel",
    "print_kernel",
    "violations",
]

_FILES = {
    "kernel": ("Kernel",),
    "op": ("Block", "Op"),
    "parser": ("parse_kernel",),
    "printer": ("print_kernel",),
    "types": (
        *("BarrierType", "FragmentType", "Memory", "ScalarType", "TensorType"),
        *("Value", "VariableType"),
    ),
    "verify": ("violations",),
}


def _found(name: str) -> Any:
    # The names come when they are asked for: the files of this package import one another through it.
    file = next((file for file, names in _FILES.items() if name in names), None)
    if file is None:
        return submodule(__name__, __path__, name)
    return getattr(import_module(f"{__name__}.{file}"), name)


__getattr__, __dir__ = namespace(__name__, __all__, _found)
