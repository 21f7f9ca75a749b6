"""Make an operation of JAX from a kernel: ``op = tilewright.jax.op(kernel)``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.custom_batching import custom_vmap

from tilewright.errors import LaunchError
from tilewright.jax.calls import KERNELS, Made, Read, alike, call, zeros_like
from tilewright.jax.products import looped
from tilewright.lang.program import FunctionSignature
from tilewright.runtime.kernel import Bound, Kernel


def op(
    kernel: Kernel | Bound, *, results: Sequence[str] = (), dtypes: Mapping[str, Any] = {}
) -> KernelFunction:
    """Make an operation of JAX from a kernel.

    A call takes the kernel's arguments without its results, and returns new arrays for these.  The extents of
    a result are those of the arguments whose dimensions have the same names.  The operation runs under
    `jax.jit` and `jax.vmap`; for gradients see `KernelFunction.backward`.

    Args:
        kernel: the kernel, or the result of `Kernel.bind` if it has constants. Its results must declare the
            names of their dimensions.
        results: the names of its results; default: the parameters that a dataflow kernel stores to. An
            explicit kernel needs them.
        dtypes: dtypes of results by name; default: that of the first array.

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
        >>> jax.jit(squared)(jnp.ones((2, 3)), jnp.ones((1, 3))).tolist()
        [[9.0], [9.0]]
    """
    bound = kernel.bind() if isinstance(kernel, Kernel) else kernel
    return KernelFunction(bound, tuple(results) or bound.stored(), dtypes)


class KernelFunction:
    """An operation of JAX made by `op`.

    Args:
        bound: the kernel.
        results: the names of its results.
        dtypes: dtypes of results by name.
    """

    def __init__(self, bound: Bound, results: tuple[str, ...], dtypes: Mapping[str, Any] = {}) -> None:
        self.bound, self.signature = bound, FunctionSignature(bound.program, results, dtypes, KERNELS)
        self.name = self.signature.name
        KERNELS[self.name] = bound
        self._arrays = tuple(one.name for one in self.signature.arguments if one.kind == "tensor")
        self._gradient: Callable[..., Mapping[str, Any]] | None = None
        self._read: tuple[str, ...] = ()

    def __call__(self, *arguments: Any) -> Any:
        """Launch the kernel on new results; numbers and integers are not traced.

        Raises:
            LaunchError: another number of arguments, or a traced number.
        """
        arrays, numbers = dict[str, Array](), dict[str, Any]()
        for one, value in self.signature.given(arguments):
            if one.kind == "tensor":
                arrays[one.name] = jnp.asarray(value)
            elif isinstance(value, int | float):
                numbers[one.name] = value
            else:
                raise LaunchError(f"{self.name}: {one.name} is {type(value).__name__}", "a number of Python")
        made = self._made(numbers)(alike(arrays))
        return made[0] if len(made) == 1 else made

    def _made(self, numbers: Mapping[str, Any]) -> Callable[[dict[str, Array]], tuple[Array, ...]]:
        """The operation on its arrays."""
        signature = self.signature

        @custom_vmap
        def launched(arrays: dict[str, Array]) -> tuple[Array, ...]:
            held = (arrays.get(one.name) for one in signature.arguments)
            shapes = signature.extents([() if one is None else one.shape for one in held])
            first = arrays[self._arrays[0]].dtype
            results = [
                Made(one.name, shape, signature.dtypes.get(one.name, first))
                for one, shape in zip(signature.results, shapes, strict=True)
            ]
            return call(self.name, [Read(*pair) for pair in arrays.items()], results, **numbers)

        @launched.def_vmap
        def batched(_size: int, are: Any, arrays: dict[str, Array]) -> tuple[tuple[Array, ...], Any]:
            return looped(launched, are, arrays), (True,) * len(signature.results)

        gradient = self._gradient
        if gradient is None:
            return launched

        def backward(kept: dict[str, Any], dys: tuple[Array, ...]) -> tuple[dict[str, Array]]:
            given = kept | {f"d{one.name}": dy for one, dy in zip(signature.results, dys, strict=True)}
            read = {name: given[name] for name in self._read}
            found = zip(self._arrays, signature.gradients(gradient, read, self._arrays), strict=True)
            return ({name: zeros_like(given[name]) if dx is None else dx for name, dx in found},)

        def forward(arrays: dict[str, Array]) -> tuple[tuple[Array, ...], dict[str, Any]]:
            made = differentiable(arrays)  # another derivative differentiates this rule
            named = {one.name: y for one, y in zip(signature.results, made, strict=True)}
            return made, arrays | named

        differentiable = jax.custom_vjp(lambda arrays: launched(arrays))
        differentiable.defvjp(forward, lambda kept, dys: backward(kept | dict(numbers), dys))
        return differentiable

    def backward(self, gradient: Callable[..., Mapping[str, Any]]) -> Callable[..., Mapping[str, Any]]:
        """Set the function that computes gradients; a decorator.

        Args:
            gradient: the function. A parameter named ``d`` and a result's name receives the gradient of that
                result; one named as an argument or a result receives that. It returns a dictionary of
                gradients by the names of arguments; an array that is missing there has zeros.

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
            ...     return {"A": multiply(dC, B.T), "B": multiply(dC.T, A.T)}
            >>> jax.grad(lambda a: multiply(a, jnp.ones((4, 3))).sum())(jnp.ones((2, 3))).tolist()
            [[4.0, 4.0, 4.0], [4.0, 4.0, 4.0]]
        """
        self._read = self.signature.read_by(gradient)
        self._gradient = gradient
        return gradient
