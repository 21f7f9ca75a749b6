"""Kernels that the C++ examples use."""

import tilewright as tw


@tw.kernel(A="M K", B="K N", C="M N")
def gemm(A, B, C):
    """C = A B."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc


@tw.kernel(A="M K", B="K N", bias="N", C="M N", alpha=tw.f32)
def linear(A, B, bias, C, alpha):
    """C = max(alpha A B + bias, 0)."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = tw.maximum(alpha * acc + bias[n], 0)
