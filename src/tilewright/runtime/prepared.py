"""A launch for one set of arrays: everything is checked and bound once, and a call only starts the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.calls import launches
from tilewright.errors import LaunchError, TilewrightError
from tilewright.lang.program import Parameter
from tilewright.runtime.arrays import locate, watch
from tilewright.runtime.executable import Executable, Prepared
from tilewright.tracebacks import trim


@launches.made("kernel.prepare(...) gives one")
class PreparedLaunch:
    """A kernel bound to arrays; calling it launches on them again.  Made by `Bound.prepare`.

    It keeps the arrays alive.  Each call checks that every array still has its address and its extents, and
    raises otherwise.  It does not check strides and dtypes changed in place, a NumPy array made read-only, or
    memory that was freed and allocated again at the same address.  Calls from several threads may run at the
    same time, each with its own workspaces; so may launches on different streams.  The caller must order a
    call that writes an array that another call reads.
    """

    def __init__(
        self, kernel: str, prepared: Prepared, parameters: Sequence[Parameter], arguments: Sequence[Any]
    ) -> None:
        self._kernel = kernel
        self._executable = prepared.executable
        self._launch = prepared.launch
        self._parameters = tuple(parameters)
        self._arguments = tuple(arguments)
        self._scalars = {p.name: at for at, p in enumerate(self._parameters) if p.kind == "scalar"}
        self._arrays = {
            p.name: a for a, p in zip(self._arguments, self._parameters, strict=True) if p.kind == "tensor"
        }
        self._located = [locate(array) for array in self._arrays.values()]
        self._pointers = tuple(pointer for _, pointer in self._located)
        self._looks = tuple(look for array in self._arrays.values() for look in watch(array))
        self._seen = [look() for look in self._looks]

    @property
    def executable(self) -> Executable:
        """The executable that is launched."""
        return self._executable

    def __call__(self, *, stream: Any = None, **numbers: Any) -> Executable:
        """Launch on the same arrays; on a GPU this returns before the kernel is done.

        Args:
            stream: the CUDA stream; default: the current stream of the arrays' framework, at each call.
            numbers: values for numbers of the kernel, by name, for this call only; other numbers keep the
                value that they were prepared with.

        Returns:
            The executable that ran.

        Raises:
            LaunchError: an array was moved or resized, a tensor requires a gradient now, or a name is no
                number of the kernel.
        """
        try:
            if [look() for look in self._looks] != self._seen:
                now = [locate(array) for array in self._arrays.values()]  # refuses tensors with a gradient
                if now != self._located:
                    pairs = zip(self._arrays, now, self._located, strict=True)
                    moved = [name for name, (_, pointer), (_, before) in pairs if pointer != before]
                    what = f"{' and '.join(moved)} moved" if moved else "an array was resized"
                    raise LaunchError(
                        f"kernel {self._kernel}: {what} since the launch was prepared; prepare it again"
                    )
            self._launch(self._with(numbers) if numbers else self._arguments, self._pointers, stream)
        except TilewrightError as error:
            trim(error)
            raise
        return self._executable

    def _with(self, numbers: dict[str, Any]) -> Sequence[Any]:
        """Return the arguments with some numbers replaced."""
        given = list(self._arguments)
        for name, value in numbers.items():
            if name not in self._scalars:
                raise LaunchError(
                    f"kernel {self._kernel}: {name}= is none of the numbers that may be given anew "
                    f"({', '.join(self._scalars) or 'it has none'}); arrays, integers and constants need a "
                    "launch prepared for them"
                )
            given[self._scalars[name]] = value
        return given

    def __repr__(self) -> str:
        return f"<prepared launch of {self._kernel} for {self._executable.target} {self._executable.arch}>"
