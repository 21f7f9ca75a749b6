"""Dataflow kernels for campaigns: products, and common functions of their sums.

B is (K, N), as in ``A @ B``; its strides say how it lies in memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial

from tests.eight_lines import product_of_rows as product

import tilewright as tw
from tilewright.runtime.kernel import Kernel

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: tw.maximum(x, 0),
    "tanh": tw.tanh,
    "sigmoid": tw.sigmoid,
    "gelu": tw.gelu,
    "silu": tw.silu,
}

FUNCTIONS = {**ACTIVATIONS, "gelu_tanh": partial(tw.gelu, approximate=True)}
"""Those of `tw.matmul`."""


@tw.kernel(A="M K", B="K N", C="M N", alpha=tw.f32, beta=tw.f32)
def scaled(A, B, C, alpha, beta):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = alpha * acc.to(tw.f32) + beta * C[m, n].to(tw.f32)


@tw.kernel(A="M K", B="K N", bias="N", C="M N")
def layer(A, B, bias, C, *, activation):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = ACTIVATIONS[activation](acc.to(tw.f32) + bias[n].to(tw.f32))


@tw.kernel(A="M K", B="K N", bias="N", scale="M", R="M N", C="M N")
def residual(A, B, bias, scale, R, C, *, activation):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        value = acc.to(tw.f32) * scale[m][:, None].to(tw.f32) + bias[n].to(tw.f32)
        C[m, n] = ACTIVATIONS[activation](value) + R[m, n].to(tw.f32)


@tw.kernel(A="M K", B="K N", R="N M", C="M N")
def masked(A, B, R, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = tw.where(R[n, m].T.to(tw.f32) > 0, acc.to(tw.f32), -1.0)


@tw.kernel(A="M K", B="K N", C="M N", D="N M")
def both_ways(A, B, C, D):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc
        D[n, m] = acc.T


@tw.kernel(A="M K", B="K N", C="M N", top="M")
def largest(A, B, C, top):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        top[m] = acc.max(axis=1)
        C[m, n] = acc


@tw.kernel(A="L M K", B="L K N", C="L M N")
def batched(A, B, C):
    for b, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[b, m, k] @ B[b, k, n]
        C[b, m, n] = acc


@tw.kernel(A="L M K", B="K N", bias="N", C="L M N")
def shared_weights(A, B, bias, C):
    for b, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[b, m, k] @ B[k, n]
        C[b, m, n] = acc.to(tw.f32) + bias[n].to(tw.f32)


@tw.kernel(A="M K", B="K N", C="M N")
def decoded(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n].to(A.dtype)
        C[m, n] = acc


@dataclass(frozen=True)
class Subject:
    """A kernel, and the arguments that a problem must give it.

    Args:
        kernel: the kernel.
        stored: arrays that it writes.
        numbers: numbers that are passed.
        activates: whether it has an activation to choose.
        in_f32: whether what it stores is computed in f32 from the sums.
    """

    kernel: Kernel
    stored: tuple[str, ...] = ("C",)
    numbers: tuple[str, ...] = ()
    activates: bool = False
    in_f32: bool = False


SUBJECTS = {
    "product": Subject(product),
    "scaled": Subject(scaled, numbers=("alpha", "beta"), in_f32=True),
    "layer": Subject(layer, activates=True, in_f32=True),
    "residual": Subject(residual, activates=True, in_f32=True),
    "masked": Subject(masked, in_f32=True),
    "both ways": Subject(both_ways, ("C", "D")),
    "largest": Subject(largest, ("C", "top")),
    "batched": Subject(batched),
    "shared weights": Subject(shared_weights, in_f32=True),
    "decoded": Subject(decoded),
}


@lru_cache
def called(number: tw.DType) -> Kernel:
    """Return the computation of a `tw.matmul` call whose arrays all have the result's batch items.

    Args:
        number: the dtype in which functions of the sums are computed.
    """

    @tw.kernel(A="L M K", B="L K N", C="L M N", bias="N", R="L M N", D="L M N", alpha=number, beta=number)
    def matmul(A, B, C, bias, R, D, alpha, beta, *, terms, activation, precision):
        for b, m, n in tw.tiles(D):
            acc = tw.zeros()
            for k in tw.steps(A.shape[2]):
                acc += A[b, m, k].matmul(B[b, k, n], precision=precision)
            value = acc
            if terms or activation:
                value = acc.to(number)
            if "alpha" in terms:
                value = alpha * value
            if "C" in terms:
                value = value + beta * C[b, m, n].to(number)
            if "bias" in terms:
                value = value + bias[n].to(number)
            if activation is not None:
                value = FUNCTIONS[activation](value)
            if "R" in terms:
                value = value + R[b, m, n].to(number)
            D[b, m, n] = value

    return matmul
