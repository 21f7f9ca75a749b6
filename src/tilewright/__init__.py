"""Write GEMM-family kernels out of tiles; run one source on NVIDIA GPUs and on CPUs.

>>> import tilewright as tw
>>> tw.ceil_div((130, 64), (128, 64))
(2, 1)
"""

from importlib import import_module
from importlib.machinery import PathFinder

__version__ = "0.1.0"

# Type checkers take it for true; `typing`, which has it, would be the largest import here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from tilewright.public import *  # noqa: F403
else:
    # A program that only may use tilewright, and the command line that says its version, do not wait for it:
    # the names come when the first is asked for, the targets when a kernel is compiled for them.

    def __getattr__(name):
        special = name.startswith("__")
        if not special and PathFinder.find_spec(f"tilewright.{name}", __path__) is not None:  # noqa: F405
            return import_module(f"tilewright.{name}")
        if special and name != "__all__":
            raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
        public = import_module("tilewright.public")
        ready = {known: vars(public)[known] for known in public.__all__ if known in vars(public)}
        globals().update(ready, __all__=["__version__", *public.__all__])
        if name in globals():
            return globals()[name]
        if name in public.__all__:
            return getattr(public, name)
        near = import_module("difflib").get_close_matches(name, public.__all__, 1, 0.7)
        meant = f"; did you mean tw.{near[0]}?" if near else ""
        # Without an object Python has no guess of its own to add.
        missing = AttributeError(f"module 'tilewright' has no attribute {name!r}{meant}", name=name, obj=None)
        missing.of_users = True
        try:
            raise missing
        except AttributeError as error:
            import_module("tilewright.tracebacks").trim(error)
            raise

    def __dir__():
        own = {name for name in globals() if name.startswith("__")}
        return sorted(own | set(import_module("tilewright.public").__all__))
