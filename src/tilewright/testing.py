"""Tools for trying kernels: test matrices, comparison with a product, timing, arrays on a device.

>>> import tilewright as tw
>>> made = tw.testing.operands("random", tw.f32, (40, 50, 60))
>>> bool(tw.testing.compare_gemm(made.a, made.b, made.a @ made.b).ok)
True
"""

from tilewright.checking.compare import compare_gemm
from tilewright.checking.references import softmax_attention
from tilewright.checking.sample import operands
from tilewright.functions.philox import philox
from tilewright.namespaces import namespace
from tilewright.runtime.algebra import compare_algebra, residues
from tilewright.runtime.gpu_memory import device_get, device_put
from tilewright.tune.measure import do_bench
from tilewright.tune.programs import parse_args, run_attention, run_gemm
from tilewright.tune.trial import Trial

__all__ = [
    "Trial",
    "compare_algebra",
    "compare_gemm",
    "device_get",
    "device_put",
    "do_bench",
    "operands",
    "parse_args",
    "philox",
    "residues",
    "run_attention",
    "run_gemm",
    "softmax_attention",
]

__getattr__, __dir__ = namespace(__name__, __all__)
