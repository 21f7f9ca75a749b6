"""Kernels as functions of JAX, with gradients and `vmap`: ``import tilewright.jax``."""

from tilewright.jax.attending import attention
from tilewright.jax.calls import ready
from tilewright.jax.kernels import KernelFunction, op
from tilewright.jax.products import dot_general, einsum, linear, matmul, scaled_mm

__all__ = [
    "KernelFunction",
    "attention",
    "dot_general",
    "einsum",
    "linear",
    "matmul",
    "op",
    "ready",
    "scaled_mm",
]
