"""Dataflow kernels for small schedules."""

from __future__ import annotations

import tilewright as tw


@tw.kernel(A="M K", B="N K", rows="M", C="M N")
def chosen_rows(A, B, rows, C):
    """Gather rows, and scatter them to other places."""
    for m, n in tw.tiles((rows.shape[0], B.shape[0])):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[rows[m], k] @ B[n, k].T
        C[rows[m], n] = acc


@tw.kernel(A="M K", B="N K", rows="M", C="M N")
def scattered_rows(A, B, rows, C):
    for m, n in tw.tiles((A.shape[0], B.shape[0])):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[rows[m], n] = acc


@tw.kernel(A="M K", B="N K", bias="N", R="M N", C="M N")
def residual(A, B, bias, R, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.maximum(acc + bias[n], 0) + R[m, n]


@tw.kernel(A="M K", B="N K", s="M", C="M N", D="M N")
def two_results(A, B, s, C, D):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        D[m, n] = acc
        C[m, n] = acc * s[m][:, None]


@tw.kernel(A="M K", B="N K", C="M N", total="M")
def row_sums(A, B, C, total):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        total[m] = acc.sum(axis=1)
        C[m, n] = acc


@tw.kernel(A="M K", B="N K", C="M N")
def decoded(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].to(A.dtype).T
        C[m, n] = acc


@tw.kernel(A="M K", B="N K", P="M R", Q="N R", C="M N")
def two_loops(A, B, P, Q, C):
    """Sum along two spans.  One sum is scaled, and its loop comes first."""
    for m, n in tw.tiles(C):
        acc, low = tw.zeros(), tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        for r in tw.steps(P.shape[1]):
            low += P[m, r] @ Q[n, r].T
        C[m, n] = acc + 0.5 * low


@tw.kernel(A="M K", B="N K", C="M N")
def normalised(A, B, C):
    """Add up the squares of the rows of A next to the product."""
    for m, n in tw.tiles(C):
        acc, square = tw.zeros(), tw.zeros((m,), tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
            a = A[m, k].to(tw.f32)
            square += (a * a).sum(axis=1)
        C[m, n] = acc * tw.rsqrt(square + 1)[:, None]


@tw.kernel(A="M K", B="N K", C="M N")
def shifted(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += (A[m, k] + 1.0) @ B[n, k].T
        C[m, n] = acc


@tw.kernel(A="L M K", B="L N K", C="L M N")
def batched(A, B, C):
    for b, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[b, m, k] @ B[b, n, k].T
        C[b, m, n] = acc


@tw.kernel(A="M K", B="L N K", ends="L", bias="L N", R="M N", C="M N")
def grouped(A, B, ends, bias, R, C):
    for g, m, n in tw.tiles(C, groups=ends):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[g, n, k].T
        C[m, n] = tw.maximum(acc + bias[g, n], 0) + R[m, n]
