r"""The IR: explicit kernels as typed operations, dataflow kernels as graphs of values.

Both print and read back; operations are verified, and a graph is evaluated with NumPy.

>>> import tilewright as tw
>>> kernel = tw.ir.parse_kernel("# tilewright ir 1\nkernel('nothing', threads=32, lanes=32)\nbarrier()\n")
>>> tw.ir.violations(kernel), [op.name for op in kernel.body.walk()]
([], ['barrier'])
"""

from typing import TYPE_CHECKING, Any

from tilewright.namespaces import import_whole, namespace, submodule

if TYPE_CHECKING:
    from tilewright.dataflow.evaluate import evaluate as evaluate
    from tilewright.dataflow.nodes import Flow as Flow
    from tilewright.dataflow.parser import parse_flow as parse_flow
    from tilewright.dataflow.printer import print_flow as print_flow
    from tilewright.ir.kernel import Kernel as Kernel
    from tilewright.ir.op import Block as Block
    from tilewright.ir.op import Op as Op
    from tilewright.ir.parser import parse_kernel as parse_kernel
    from tilewright.ir.printer import print_kernel as print_kernel
    from tilewright.ir.types import BarrierType as BarrierType
    from tilewright.ir.types import FragmentType as FragmentType
    from tilewright.ir.types import Memory as Memory
    from tilewright.ir.types import ScalarType as ScalarType
    from tilewright.ir.types import TensorType as TensorType
    from tilewright.ir.types import Value as Value
    from tilewright.ir.types import VariableType as VariableType
    from tilewright.ir.verify import violations as violations

_FILES = {
    "dataflow.evaluate": ("evaluate",),
    "dataflow.nodes": ("Flow",),
    "dataflow.parser": ("parse_flow",),
    "dataflow.printer": ("print_flow",),
    "ir.kernel": ("Kernel",),
    "ir.op": ("Block", "Op"),
    "ir.parser": ("parse_kernel",),
    "ir.printer": ("print_kernel",),
    "ir.types": (
        *("BarrierType", "FragmentType", "Memory", "ScalarType", "TensorType"),
        *("Value", "VariableType"),
    ),
    "ir.verify": ("violations",),
}


__all__ = sorted(name for names in _FILES.values() for name in names)


def _found(name: str) -> Any:
    # Names are imported on first use, because the files of this package import one another through it.
    file = next((file for file, names in _FILES.items() if name in names), None)
    if file is None:
        return submodule(__name__, __path__, name)
    return getattr(import_whole(f"tilewright.{file}"), name)


__getattr__, __dir__ = namespace(__name__, __all__, _found)
