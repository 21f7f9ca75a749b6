"""Write GEMM-family kernels out of tiles; run one source on NVIDIA GPUs and on CPUs.

>>> import tilewright as tw
>>> tw.ceil_div((130, 64), (128, 64))
(2, 1)

What kernels of every kind are written with is here.  `tw.hopper` has the verbs of Hopper's barriers, bulk
copies and clusters, `tw.layouts` the algebra of layouts, `tw.ir` what a kernel looks like inside,
`tw.testing` what programs that try kernels need, `tw.ck` device GEMMs in the terms of Composable Kernel.
"""

from tilewright.namespaces import namespace, submodule

__version__ = "0.1.0"

# Type checkers take it for true; `typing`, which has it, would be the largest import here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from tilewright import ck, hopper, ir, layouts, testing  # noqa: F401
    from tilewright.lang.exact_functions import *  # noqa: F403
    from tilewright.lang.functions import *  # noqa: F403
    from tilewright.public import *  # noqa: F403  mypy does not see what `__all__ +=` adds
else:
    # A program that only may use tilewright, and the command line that says its version, do not wait for it:
    # the names come when the first is asked for, the targets when a kernel is compiled for them.

    _NAMESPACES = ("ck", "hopper", "ir", "layouts", "testing")

    def _found(name):
        module = submodule(__name__, __path__, name)  # noqa: F405
        if module is not None or (name.startswith("__") and name != "__all__"):
            return module
        public = submodule(__name__, __path__, "public")  # noqa: F405
        ready = {known: vars(public)[known] for known in public.__all__ if known in vars(public)}
        globals().update(ready, __all__=sorted(["__version__", *_NAMESPACES, *public.__all__]))
        if name in public.__all__:
            globals()[name] = getattr(public, name)  # found at once the next time
        return globals().get(name)

    __getattr__ = namespace(__name__, [], _found)[0]

    def __dir__():
        return __getattr__("__all__")
