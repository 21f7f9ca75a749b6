"""A kernel of the user's as an operation of PyTorch: ``op = tilewright.torch.op(kernel)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilewright.errors import LaunchError, SignatureError
from tilewright.runtime.kernel import Bound, Kernel
from tilewright.torch.registry import Operation, recorded, tensors_of

_NAMES: set[str] = set()
"""Names of operations; PyTorch knows an operation by its name."""

TYPES = {"tensor": "Tensor", "scalar": "float", "index": "SymInt"}
"""PyTorch's type of each kind of parameter."""


def op(
    kernel: Kernel | Bound,
    *,
    results: Sequence[str] = (),
    dtypes: Mapping[str, torch.dtype] = {},
) -> KernelOperation:
    """Make an operation of PyTorch from a kernel.

    A call takes the kernel's arguments without its results, and returns new tensors for these.  The extents
    of a result are those of the arguments whose dimensions have the same names.  The operation runs under
    `torch.compile`; for gradients see `KernelOperation.backward`.

    Args:
        kernel: the kernel, whose results declare the names of their dimensions; with constants: what
            `Kernel.bind` returns.
        results: the names of its results; default: the parameters that a dataflow kernel stores to. An
            explicit kernel needs them.
        dtypes: dtypes of results by name; default: that of the first argument.

    Returns:
        The operation.

    Raises:
        SignatureError: no argument has a dimension of that name, or the results are not known.

    Example:
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="N K", C="M N")
        ... def squares(A, B, C):
        ...     for m, n in tw.tiles(C):
        ...         acc = tw.zeros(dtype=tw.f32)
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ B[n, k].T
        ...         C[m, n] = acc * acc
        >>> squared = op(squares)
        >>> squared(torch.ones(2, 3), torch.ones(1, 3)).tolist()
        [[9.0], [9.0]]
    """
    bound = kernel.bind() if isinstance(kernel, Kernel) else kernel
    return KernelOperation(bound, tuple(results) or bound.stored(), dtypes)


class KernelOperation:
    """An operation of PyTorch made by `op`.

    Args:
        bound: the kernel.
        results: the names of its results.
        dtypes: dtypes of results by name.
    """

    def __init__(
        self, bound: Bound, results: tuple[str, ...], dtypes: Mapping[str, torch.dtype] = {}
    ) -> None:
        self.bound = bound
        parameters = {one.name: one for one in bound.program.parameters}
        name = bound.program.name
        for result in (*results, *dtypes):
            if result not in parameters or parameters[result].kind != "tensor":
                raise SignatureError(f"kernel {name} has no array {result}; it has {', '.join(parameters)}")
        self.arguments = tuple(one for one in parameters.values() if one.name not in results)
        self.results = tuple(parameters[result] for result in results)
        self.dtypes = dict(dtypes)
        sizes = {
            dim: (at, place)
            for at, one in reversed([*enumerate(self.arguments)])
            for place, dim in enumerate(one.dims)
        }
        for one in self.results:
            if missing := [dim for dim in one.dims if dim not in sizes]:
                raise SignatureError(
                    f"kernel {name}: no argument has the dimension {missing[0]} of the result {one.name}; "
                    f"nearest legal choice: one of {', '.join(sizes)}"
                )
        self._sizes = sizes
        self._gradient: Callable[..., Mapping[str, Any]] | None = None
        self._read: tuple[str, ...] = ()
        schema = ", ".join(f"{TYPES[one.kind]} {one.name}" for one in self.arguments)
        made = "Tensor" if len(results) == 1 else f"({', '.join('Tensor' for _ in results)})"
        unique, number = f"kernel_{name}", 1
        while unique in _NAMES:
            number += 1
            unique = f"kernel_{name}_{number}"
        _NAMES.add(unique)
        self.operation = Operation(
            f"{unique}({schema}) -> {made}",
            self._run,
            self._fake,
            self._differentiate,
        )

    def __call__(self, *arguments: Any) -> Any:
        """Launch the kernel on new results.

        Raises:
            LaunchError: the arguments do not fit the kernel, or a tensor wants a gradient and it has none.
        """
        return self.operation(*arguments)

    def backward(self, gradient: Callable[..., Mapping[str, Any]]) -> Callable[..., Mapping[str, Any]]:
        """Set the function that computes gradients; a decorator.

        Args:
            gradient: its parameters are named ``d`` and a result's name, for the gradient of that result, or
                as an argument or a result, which is then kept. It returns a dictionary of gradients by the
                names of arguments; an argument that is missing there has none.

        Raises:
            SignatureError: a parameter has another name.

        Example:
            >>> import tilewright as tw
            >>> @tw.kernel(A="M K", B="N K", C="M N")
            ... def product(A, B, C):
            ...     for m, n in tw.tiles(C):
            ...         acc = tw.zeros(dtype=tw.f32)
            ...         for k in tw.steps(A.shape[1]):
            ...             acc += A[m, k] @ B[n, k].T
            ...         C[m, n] = acc
            >>> multiply = op(product)
            >>> @multiply.backward
            ... def gradient(dC, A, B):
            ...     return {"A": multiply(dC, B.mT), "B": multiply(dC.mT, A.mT)}
            >>> a = torch.ones(2, 3, requires_grad=True)
            >>> multiply(a, torch.ones(4, 3)).sum().backward()
            >>> a.grad.tolist()
            [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]
        """
        known = [*self._kept(), *(f"d{one.name}" for one in self.results)]
        read = tuple(inspect.signature(gradient).parameters)
        for name in read:
            if name not in known:
                raise SignatureError(
                    f"the gradient of {self.bound.program.name} has a parameter {name}; nearest legal "
                    f"choice: one of {', '.join(known)}"
                )
        self._gradient, self._read = gradient, read
        return gradient

    def _kept(self) -> tuple[str, ...]:
        return tuple(one.name for one in (*self.arguments, *self.results))

    def _made(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """New tensors for the results."""
        first = tensors_of(arguments)[0]
        made = list[torch.Tensor]()
        for one in self.results:
            places = (self._sizes[dim] for dim in one.dims)
            shape = [arguments[at].shape[place] for at, place in places]
            made.append(first.new_empty(shape, dtype=self.dtypes.get(one.name, first.dtype)))
        return made

    def _fake(self, *arguments: Any) -> Any:
        made = self._made(arguments)
        return made[0] if len(made) == 1 else tuple(made)

    def _run(self, *arguments: Any) -> Any:
        made = self._made(arguments)
        named = dict(zip(self._kept(), (*arguments, *made), strict=True))
        self.bound(*(named[one.name] for one in self.bound.program.parameters))
        return made[0] if len(made) == 1 else tuple(made)

    def _differentiate(self, *arguments: Any) -> Any:
        if self._gradient is None:
            raise LaunchError(
                f"{self.operation.name}: the kernel has no gradient; nearest legal choice: the decorator "
                "backward of the operation, tensor.detach(), or a call under torch.no_grad()"
            )
        return recorded(WithGradient, self, *arguments)


class WithGradient(torch.autograd.Function):
    """A kernel's operation with the gradient of its author."""

    @staticmethod
    def forward(own: KernelOperation, *arguments: Any) -> Any:
        """Launch the kernel."""
        return own.operation.inside(*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep what the author's function reads."""
        own, *arguments = inputs
        results = output if isinstance(output, tuple) else (output,)
        named = dict(zip(own._kept(), (*arguments, *results), strict=True))
        ctx.own, read = own, own._read
        ctx.names = [name for name in read if isinstance(named.get(name), torch.Tensor)]
        ctx.numbers = {name: named[name] for name in read if name in named and name not in ctx.names}
        ctx.save_for_backward(*(named[name] for name in ctx.names))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Call the author's function."""
        own = ctx.own
        given = dict(zip(ctx.names, ctx.saved_tensors, strict=True)) | ctx.numbers
        given |= {f"d{one.name}": dy for one, dy in zip(own.results, gradients, strict=True)}
        found = dict(own._gradient(**{name: given[name] for name in own._read}))
        made = [found.pop(one.name, None) for one in own.arguments]
        if found:
            raise LaunchError(
                f"the gradient of {own.bound.program.name} returns {next(iter(found))}; nearest legal "
                f"choice: one of {', '.join(one.name for one in own.arguments)}"
            )
        return None, *made
