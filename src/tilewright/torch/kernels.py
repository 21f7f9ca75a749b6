"""Make an operation of PyTorch from a kernel: ``op = tilewright.torch.op(kernel)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilewright.errors import LaunchError, SignatureError
from tilewright.lang.program import FunctionSignature
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
        kernel: the kernel, or the result of `Kernel.bind` if it has constants. Its results must declare the
            names of their dimensions.
        results: the names of its results; default: the parameters that a dataflow kernel stores to. An
            explicit kernel needs them.
        dtypes: dtypes of results by name; default: that of the first argument.

    Returns:
        The operation.

    Raises:
        SignatureError: no argument has a dimension of that name, or the results are not known; or it is no
            kernel.

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
    if not isinstance(kernel, Kernel | Bound):
        raise SignatureError(
            f"op: {kernel!r} is no kernel", "a function with the decorator tilewright.kernel"
        )
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
        self.signature = FunctionSignature(bound.program, results, dtypes, _NAMES)
        _NAMES.add(self.signature.name)
        self._gradient: Callable[..., Mapping[str, Any]] | None = None
        self._read: tuple[str, ...] = ()
        schema = ", ".join(f"{TYPES[one.kind]} {one.name}" for one in self.signature.arguments)
        made = "Tensor" if len(results) == 1 else f"({', '.join('Tensor' for _ in results)})"
        self.operation = Operation(
            f"{self.signature.name}({schema}) -> {made}",
            self._run,
            self._fake,
            self._differentiate,
        )

    def __call__(self, *arguments: Any) -> Any:
        """Launch the kernel on new results.

        Raises:
            LaunchError: the arguments do not fit the kernel, or a tensor wants a gradient and it has none.
        """
        for one, value in self.signature.given(arguments):
            if one.kind == "tensor" and not isinstance(value, torch.Tensor):
                raise LaunchError(
                    f"{self.signature.name}: {one.name} is a {type(value).__name__}", "a tensor"
                )
        return self.operation(*arguments)

    def backward(self, gradient: Callable[..., Mapping[str, Any]]) -> Callable[..., Mapping[str, Any]]:
        """Set the function that computes gradients; a decorator.

        Args:
            gradient: the function. A parameter named ``d`` and a result's name receives the gradient of that
                result; one named as an argument or a result receives that, and PyTorch saves it. It returns a
                dictionary of gradients by the names of arguments; an argument that is missing there has none.

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
        self._read = self.signature.read_by(gradient)
        self._gradient = gradient
        return gradient

    def made(self, arguments: Sequence[Any]) -> list[torch.Tensor]:
        """Return new tensors for the results.

        Args:
            arguments: as for a call.
        """
        first, signature = tensors_of(arguments)[0], self.signature
        shapes = signature.extents([one.shape if isinstance(one, torch.Tensor) else () for one in arguments])
        kinds = (signature.dtypes.get(one.name, first.dtype) for one in signature.results)
        return [first.new_empty(shape, dtype=kind) for shape, kind in zip(shapes, kinds, strict=True)]

    def _fake(self, *arguments: Any) -> Any:
        made = self.made(arguments)
        return made[0] if len(made) == 1 else tuple(made)

    def _run(self, *arguments: Any) -> Any:
        made = self.made(arguments)
        named = dict(zip(self.signature.names, (*arguments, *made), strict=True))
        self.bound(*(named[one.name] for one in self.bound.program.parameters))
        return made[0] if len(made) == 1 else tuple(made)

    def _differentiate(self, *arguments: Any) -> Any:
        if self._gradient is None:
            raise LaunchError(
                f"{self.operation.name}: the kernel has no gradient",
                "the decorator backward of the operation, tensor.detach(), or a call under torch.no_grad()",
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
        """Keep the arguments that the author's function reads."""
        own, *arguments = inputs
        results = output if isinstance(output, tuple) else (output,)
        named = dict(zip(own.signature.names, (*arguments, *results), strict=True))
        ctx.own, read = own, own._read
        ctx.shapes = [one.shape if isinstance(one, torch.Tensor) else None for one in arguments]
        ctx.names = [name for name in read if isinstance(named.get(name), torch.Tensor)]
        ctx.numbers = {name: named[name] for name in read if name in named and name not in ctx.names}
        ctx.save_for_backward(*(named[name] for name in ctx.names))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """Call the author's function."""
        own = ctx.own
        given = dict(zip(ctx.names, ctx.saved_tensors, strict=True)) | ctx.numbers
        given |= {f"d{one.name}": dy for one, dy in zip(own.signature.results, gradients, strict=True)}
        names = [one.name for one in own.signature.arguments]
        made = own.signature.gradients(own._gradient, {name: given[name] for name in own._read}, names)
        for name, one, like in zip(names, made, ctx.shapes, strict=True):
            if isinstance(one, torch.Tensor) and one.shape != like:
                raise LaunchError(
                    f"the gradient of {own.signature.name} returns {name} of shape {tuple(one.shape)}",
                    f"that of the argument, {tuple(like or ())}",
                )
        return None, *made
