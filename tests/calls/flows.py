"""Legal dataflow kernels, as text, into which the fuzzer puts wrong values."""

from __future__ import annotations

FLOWS = """
for m, n in tw.tiles(C): C[m, n] = A[m, n] + B[n, m].T

for m, n in tw.tiles(C, batch=0): C[m, n] = 2 * A[m, n]

for m, n in tw.tiles(C, batch=1): C[m, n] = A[m, n] * alpha

for g, m, n in tw.tiles(C, groups=groups): C[m, n] = A[m, n] + v[n]

for m, n in tw.tiles((K, K)): C[m, n] = A[m, n] - n0

for m, n in tw.tiles(C): v[m] = A[m, n].min(axis=1)

for m, n in tw.tiles(C): C[m, n] = A[::-1][m, n] + B[:, ::-1][m, n]

for m, n in tw.tiles(C): v[m] = A[m, n].argmax(axis=1) + A[m, n].argmin(axis=-1)

for m, n in tw.tiles(C): C[m, n] = A[m, n] * v[m][:, None] + v[n]

for m, n in tw.tiles(C): C[m, n] = tw.where(tw.positions(n) <= tw.positions(m)[:, None], A[m, n], 0)

for m, n in tw.tiles(C): C[m, n] = tw.where(A[m, n] < 1.0, tw.gelu(A[m, n]), tw.exp(v[n]))

for m, n in tw.tiles(C): C[m, n] = tw.clamp(A[m, n], -1, 1).to("f16", saturate=True)

for m, n in tw.tiles(C): C[m, n] = tw.fma(A[m, n], v[n], 1.0) / alpha

for m, n in tw.tiles(C): C[m, n] = A[m, n].cumsum(axis=1)

for m, n in tw.tiles(C): C[m, n] = A[m, n].cumsum(axis=1, reverse=True)

for m in tw.tiles(v):
    s = tw.zeros((m,), tw.f32)
    for k in tw.steps(groups.shape[0]): s.assign(s + tw.take(u, groups[k], tw.f32).sum(axis=0))
    v[m] = s

for m, n in tw.tiles(C):
    acc = tw.zeros(dtype=tw.f32)
    for k in tw.steps(K): acc += A[m, k] @ B[n, k].T
    C[m, n] = acc

for m, n in tw.tiles(C):
    acc = tw.zeros(dtype="f64")
    for k in tw.steps(K): acc -= (alpha * A[m, k]).matmul(B[k, n], precision="exact")
    C[m, n] = acc

for m, n in tw.tiles(C):
    tw.arrives(A, ready, n0, first=3)
    acc = tw.zeros()
    for k in tw.steps(K): acc += A[m, k] @ B[k, n]
    C[m, n] = acc

for p, n in tw.tiles(C, batch=1):
    tw.leaves(C, ready, first=n0)
    acc = tw.zeros()
    for k in tw.steps(K): acc += A[p, k] @ B[k, n]
    C[p, n] = acc

for m in tw.tiles(v):
    top = tw.full((m,), 0, tw.f32)
    for k in tw.steps(K): top.assign(tw.maximum(top, A[m, k].max(axis=1)))
    v[m] = top

for m in tw.tiles(v):
    s = tw.zeros((m,), tw.f32)
    for k in tw.steps(K, state=s, merge=tw.maximum): s.assign(tw.maximum(s, A[m, k].max(axis=1)))
    v[m] = s

for n in tw.tiles(K):
    s = tw.zeros((K, n), tw.f32)
    for k in tw.steps(K):
        i = tw.alias(k)
        C[i, n] = A[i] @ s
        s.assign(s + A[k].T @ B[k, n])

for n in tw.tiles(K):
    s, z = tw.zeros((K, n), tw.f32), tw.zeros((K,), tw.f32)
    s.assign(B[:, n])
    for k in tw.steps(K):
        i = tw.alias(k)
        C[i, n] = A[i] @ s
        s.assign(s + A[k].T @ B[k, n])
        z.assign(z + A[k].T.sum(axis=1))
    v[:] = z

for m, n in tw.tiles(C): C[m, n] = tw.softmax(A[m] @ B.T, axis=1)

for m in tw.tiles(K): C[m] = tw.softmax(tw.where(tw.positions(A[m], axis=1) < n0, A[m], 0.5))

for m in tw.tiles(v):
    s = tw.zeros((m,), tw.f32)
    for k in tw.steps(K): s += A[m, k] @ u[k]
    s *= 0.5
    v[m] = s / n0
""".strip().split("\n\n")
"""Bodies of dataflow kernels."""

RECORDED = """
A
B
C
u
v
alpha
n0
m
n
(m, n)
K
tw.tiles(C)
tw.steps(K)
tw.zeros()
A[m, n]
v[m]
A[m, n] < 1
A[m, n].sum(axis=0)
A.shape
""".strip().splitlines()
"""What replaces an argument inside of one, besides values that are there everywhere."""
