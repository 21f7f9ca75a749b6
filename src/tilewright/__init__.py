"""Write GEMM-family kernels out of tiles; run one source on NVIDIA GPUs and on CPUs.

>>> import tilewright as tw
>>> tw.ceil_div((130, 64), (128, 64))
(2, 1)

This namespace has the functions and classes that kernels of every kind use.  `tw.hopper` has barriers, bulk
copies and clusters of Hopper, `tw.layouts` the algebra of layouts, `tw.ir` the representation of kernels,
`tw.testing` tools for programs that test kernels, `tw.ck` device GEMMs in the terms of Composable Kernel.
"""

from tilewright.namespaces import namespace, submodule

__version__ = "0.1.0"

# True for type checkers. Importing it from `typing` would be the largest import here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from tilewright import ck, hopper, ir, layouts, testing  # noqa: F401
    from tilewright.lang.exact_functions import *  # noqa: F403
    from tilewright.lang.functions import *  # noqa: F403
    from tilewright.public import *  # noqa: F403  mypy does not see what `__all__ +=` adds
else:
    # Names are imported at the first access, and targets at the first compilation, so that the import is
    # fast.

    _NAMESPACES = ("ck", "hopper", "ir", "layouts", "testing")

    def _found(name):
        module = submodule(__name__, __path__, name)  # noqa: F405
        if module is not None or (name.startswith("__") and name != "__all__"):
            return module
        public = submodule(__name__, __path__, "public")  # noqa: F405
        ready = {known: vars(public)[known] for known in public.__all__ if known in vars(public)}
        globals().update(ready, __all__=sorted(["__version__", *_NAMESPACES, *public.__all__]))
        if name in public.__all__:
            globals()[name] = getattr(public, name)  # the next access finds it directly
        return globals().get(name)

    __getattr__ = namespace(__name__, [], _found)[0]

    def __dir__():
        return __getattr__("__all__")
