"""Tools for trying kernels: test matrices, comparison with a product, timing, arrays on a device.

>>> import tilewright as tw
>>> made = tw.testing.operands("random", tw.f32, (40, 50, 60))
>>> bool(tw.testing.compare_gemm(made.a, made.b, made.a @ made.b).ok)
True
"""

from typing import TYPE_CHECKING, Any

from tilewright.checking.compare import compare_gemm
from tilewright.checking.references import softmax_attention
from tilewright.checking.sample import operands
from tilewright.functions.philox import philox
from tilewright.namespaces import import_whole, namespace
from tilewright.runtime.algebra import compare_algebra, residues
from tilewright.runtime.gpu_memory import device_get, device_put
from tilewright.tune.measure import do_bench
from tilewright.tune.programs import parse_args, run_attention, run_gemm
from tilewright.tune.trial import Trial

if TYPE_CHECKING:
    from tilewright.runtime.ranks import hold, launch, post, ranks, send

__all__ = [
    "Trial",
    "compare_algebra",
    "compare_gemm",
    "device_get",
    "device_put",
    "do_bench",
    "hold",
    "launch",
    "operands",
    "parse_args",
    "philox",
    "post",
    "ranks",
    "residues",
    "run_attention",
    "run_gemm",
    "send",
    "softmax_attention",
]

_OF_RANKS = ("hold", "launch", "post", "ranks", "send")
"""Names imported at the first use, because they load the reference."""


def _found(name: str) -> Any:
    return getattr(import_whole("tilewright.runtime.ranks"), name) if name in _OF_RANKS else None


__getattr__, __dir__ = namespace(__name__, __all__, _found)
