"""Record what the library produces, or compare it with the record of another source tree.

    python scripts/unchanged.py --write before.json
    python scripts/unchanged.py --against before.json --part texts --share 1/4
    python scripts/unchanged.py --against before.json --show "sm_90a, small: matmul(f16(M, K), f16(K, N))"

A record has four parts.  ``texts`` are the kernels of `CALLS` on `MACHINES`: each call plans all of its
launches, but nothing is compiled or launched.  ``forms`` are the texts of the schedules in
`tests/schedule/forms.py` and `tests/schedule/small.py`.  ``proposals`` are the first schedules that the rules
propose for each kernel of random calls, in order.  ``bits`` are hashes of the results of `CALLS` on this CPU,
with one thread and with two.

In texts, names of kernels, parameters and variables are replaced by numbers in the order of their
declarations, and comments are removed.  Everything else is compared exactly.

A record is two files in one folder: the hashes as JSON, and the hashed texts as a ZIP archive, which
``--show`` reads.  With ``--part``, ``--share`` and ``--only``, ``--write`` replaces only these entries of a
record.  Prints each difference and where the time goes; exits with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import json
import mmap
import multiprocessing
import os
import random
import re
import subprocess
import sys
import time
import warnings
import zipfile
from collections import ChainMap, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from math import prod
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch
from weakref import WeakSet

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import numpy as np  # noqa: E402
from tests.schedule import forms, small  # noqa: E402

import tilewright as tw  # noqa: E402
from tilewright import dtypes  # noqa: E402
from tilewright.checking.sample import normal  # noqa: E402
from tilewright.errors import LegalityError, TilewrightError  # noqa: E402
from tilewright.ir.verify import violations  # noqa: E402
from tilewright.ops import launching  # noqa: E402
from tilewright.ops.lists import ListTable  # noqa: E402
from tilewright.runtime import backends, tables  # noqa: E402
from tilewright.runtime import cache as cache_files  # noqa: E402
from tilewright.runtime.arrays import describe  # noqa: E402
from tilewright.runtime.device import CudaBackend  # noqa: E402
from tilewright.runtime.executable import Executable  # noqa: E402
from tilewright.runtime.hip import HipBackend  # noqa: E402
from tilewright.runtime.host import CpuBackend  # noqa: E402
from tilewright.runtime.kernel import Bound  # noqa: E402
from tilewright.runtime.plans import Plan  # noqa: E402
from tilewright.schedule.choice import candidates  # noqa: E402
from tilewright.schedule.question import LoopQuestion  # noqa: E402
from tilewright.targets.dialect import KEYWORDS  # noqa: E402
from tilewright.targets.target import CPU, CUDA, HIP, HOST, TARGETS, Target, owner  # noqa: E402

# ---------------------------------------------------------------- the calls

CALLS = (
    r"""
matmul(f16(M, K), f16(K, N))
matmul(f16.T(M, K), f16(K, N))
matmul(f16(M, K), f16.T(K, N))
matmul(f16.wide(M, K), f16.wide(K, N))
matmul(bf16(M, K), bf16.T(K, N), bf16(M, N))
matmul(f32(M, K), f32(K, N))
matmul(f64(M, K), f64.T(K, N))
matmul(i8(M, K), i8.T(K, N))
matmul(i8(M, K), i8(K, N), out_dtype="f32")
matmul(f8e4m3(M, K), f8e4m3.T(K, N))
matmul(f8e5m2(M, K), f8e5m2(K, N), out_dtype="f32")
matmul(f8e4m3fnuz(M, K), f8e4m3fnuz.T(K, N), out_dtype="bf16")
matmul(i16(M, K), i16(K, N))
matmul(u8(M, K), i8(K, N))
matmul(u32(M, K), i32(K, N))
matmul(boolean(M, K), boolean(K, N))
matmul(i16(M, K), i8(K, N), out_dtype="f32")
matmul(f16(M, K), f16(K, N), alpha=0.5)
matmul(f16(M, K), f16(K, N), c=f16(M, N))
matmul(f16(M, K), f16(K, N), f32(M, N), beta=0.5)
matmul(f16(M, K), f16(K, N), c=f32(N), beta=-2, alpha=3)
matmul(f16(M, K), f16(K, N), bias=f16(N), activation="relu")
matmul(f16(M, K), f16(K, N), bias=f32(N), activation="gelu")
matmul(bf16(M, K), bf16(K, N), activation="gelu_tanh", out_dtype="f32")
matmul(f32(M, K), f32(K, N), activation="silu")
matmul(f64(M, K), f64(K, N), activation="sigmoid", bias=f64(N))
matmul(f16(M, K), f16(K, N), activation="tanh", residual=f16(M, N))
matmul(f16(M, K), f16.T(K, N), alpha=2, c=f16(M, N), beta=0.5, bias=f16(N), activation="silu",\
    residual=f16(M, N))
matmul(f16(M, K), f16(K, N), multiply=f16(M, N), derivative="gelu", residual=f16(M, N))
matmul(f32(L, M, K), f32(K, N), dropout=0.25, seed=7, offset=3, multiply=f32(N))
matmul(bf16(M, K), bf16.T(K, N), bias=bf16(N), activation="gelu", sums=bf16(M, N))
matmul(f16(M, K), f16(K, N), out_dtype="f8e4m3", saturate=True)
matmul(f16(L, M, K), f16(K, N), bias=f16(N))
matmul(bf16(L, M, K), bf16(L, K, N))
matmul(f16(2, 1, M, K), f16(L, K, N), residual=f16(L, 1, N))
matmul(f32(L, M, K), f32.T(L, K, N), alpha=0)
matmul(f16(K), f16(K, N))
matmul(f32(M, K), f32(K))
matmul(f16(5, K), f16.T(K, N), bias=f16(N), activation="relu")
matmul(f16(M, K), f16(K, N), split_k=3)
matmul(f16(M, K), f16(K, N), split_k=2, reduction="workspace", bias=f16(N), activation="relu")
matmul(f16(M, K), f16(K, N), split_k=2, reduction="reduce-scatter")
matmul(f16(M, K), f16(K, N), split_k=2, reduction="turnstile", c=f16(M, N))
matmul(f16(M, K), f16(K, N), split_k=2, reduction="atomic", out_dtype="f32")
matmul(bf16(M, K), bf16.T(K, N), split_k=2, reduction="cluster")
matmul(f32(M, K), f32(K, N), split_k="auto")
matmul(f16(M, K), f16.T(K, N), split_k="stream", bias=f16(N))
matmul(f16(M, K), f16.T(K, N), batch_invariant=True)
matmul(bf16(M, K), bf16.T(K, N), batch_invariant=True, split_k="auto", residual=bf16(M, N))
matmul(f32(M, K), f32(K, N), precision="f32")
matmul(f32.T(M, K), f32.T(K, N), precision="f16", alpha=0.5, bias=f32(N), activation="relu")
matmul(f32(M, K), f32(K, N), precision="tf32", c=f32(M, N))
matmul(f32(L, M, K), f32(L, K, N), precision="f32", split_k=2)
matmul(f32(M, K), f32(K, N), precision="f16", batch_invariant=True)
matmul(bf16(M, K), bf16.T(K, N), precision="f32")
matmul(f8e4m3(M, K), f8e4m3.T(K, N), precision="f32")
matmul(c64(M, K), c64(K, N), alpha=1j)
scaled_mm(f16(M, K), f8e4m3.T(K, N), scale_b=f32(N))
scaled_mm(f8e4m3(M, K), f8e4m3.T(K, N), scale_a=f32(M), scale_b=f32(N), out_dtype="bf16")
scaled_mm(f8e5m2(M, K), f8e4m3(K, N), scale_a=2.0, scale_b=f32(1))
scaled_mm(bf16(M, K), i8(K, N), scale_b=bf16(N), bias=bf16(N), activation="gelu")
scaled_mm(f16(M, K), i8.T(K, N), scale_a=f32(M), out_dtype="i8")
scaled_mm(i8(M, K), i8.T(K, N), scale_a=f32(M), scale_b=f32(N))
scaled_mm(i8(L, M, K), f16(K, N), scale_a=f32(L, M), out_dtype="f8e4m3")
scaled_mm(f32(M, K), f8e4m3(K, N), bias=f32(N), activation="relu")
scaled_mm(f8e4m3fnuz(M, K), f8e4m3fnuz.T(K, N), scale_a=f32(M))
scaled_mm(f16(M, K), f8e5m2.T(K, N), scale_b=f32(N), prepass=True)
scaled_mm(f16(M, K), f8e5m2.T(K, N), scale_b=f32(N), prepass=False)
scaled_mm(f16(M, K), i8.T(K, N), scale_b=f32(N), c=f16(M, N), beta=0.5, residual=f16(M, N))
scaled_mm(f16(M, K), f8e4m3.T(K, N), scale_b=f32(N), multiply=f16(M, N), derivative="silu", dropout=0.5,\
    seed=7, offset=3)
scaled_mm(f16(M, K), f8e4m3.T(K, N), scale_b=f32(N), split_k=2, reduction="workspace")
scaled_mm(f16(M, K), i8(K, N), scale_b=f32(N), batch_invariant=True)
scaled_mm(f8e4m3(M, 256), f8e4m3.T(256, N), scale_a=f32(M, 2), scale_b=f32(2, N))
scaled_mm(f8e4m3(M, 256), f8e4m3.T(256, N), scale_a=f32(M, 2), scale_b=f32(2, up(N, 128)), bias=f32(N),\
    activation="silu")
scaled_mm(f16(M, 200), f8e4m3.T(200, N), scale_a=f32(up(M, 128), 2), scale_b=f32(2, N))
scaled_mm(f16(M, 192), i8(192, N), scale_b=f16(6, N), group=32)
scaled_mm(bf16(M, 192), i8.T(192, N), scale_b=bf16(6, N), zero_b=i8(6, N), group=32, scale_a=f32(M),\
    bias=f32(N))
scaled_mm(f16(M, 192), i4.T(192, N), scale_b=f16(6, N), zero_b=u8(6, N), group=32, activation="tanh")
scaled_mm(f16(M, 192), i4(192, N), scale_b=f16(3, N), group=64)
scaled_mm(f16(M, 192), u4.T(192, N), scale_b=f16(3, N), group=64, table=NF4)
scaled_mm(f16(M, 192), i4.T(192, N), scale_b=f16(3, N), group=64, prepass=True)
scaled_mm(bf16(5, 192), f4e2m1.T(192, N), scale_b=f32(12, N), group=16)
scaled_mm(bf16(M, 192), f4e2m1.T(192, N), scale_b=f32(N))
scaled_mm(f16(5, 192), rearrange_weights(i4(192, N), f16(6, N), group=32))
complex_matmul(c64(M, K), c64(K, N))
complex_matmul(c64(M, K), c64(K, N), method="3m", conjugate_a=True)
complex_matmul(c64.T(M, K), c64(K, N), c64(M, N), alpha=0.5 - 2j, beta=1 + 1j, conjugate_b=True)
complex_matmul(c128(M, K), c128(K, N), alpha=2, out=c128(M, N), beta=1)
complex_matmul(c128(M, K), (f64(K, N), f64(K, N)), method="3m")
complex_matmul(c32(M, K), c32(K, N))
complex_matmul((bf16(M, K), bf16(M, K)), (bf16.T(K, N), bf16.T(K, N)), (bf16(M, N), bf16(M, N)), beta=-0.5)
complex_matmul((f16(L, M, K), f16(L, M, K)), (f16(K, N), f16(K, N)), out_dtype="f32", method="3m", alpha=1j)
complex_matmul((f32(M, K), f32(M, K)), (f32(L, K, N), f32(L, K, N)), conjugate_a=True, conjugate_b=True)
complex_matmul(c64(M, K), c64(K, N), precision="f32")
complex_matmul(c64(M, K), c64.T(K, N), c64(M, N), precision="f32", alpha=1j, conjugate_b=True)
complex_matmul(c64(M, K), c64(K, N), precision="f16")
complex_matmul(c64(M, K), c64(K, N), precision="tf32")
complex_matmul(c64(M, K), c64(K, N), split_k=2, reduction="workspace")
complex_matmul((f16(M, K), f16(M, K)), (f16(K, N), f16(K, N)), split_k="auto", reduction="turnstile")
complex_matmul((bf16(M, K), bf16(M, K)), (bf16(K, N), bf16(K, N)), split_k="stream")
complex_matmul(c64(M, K), c64(K, N), batch_invariant=True)
complex_matmul(c64(5, K), c64(K, N), alpha=0)
complex_matmul(c64(M, K), c64(K, N), c64(M, N), beta=1j, multiply=c64(M, N), dropout=0.5, seed=3, offset=4)
complex_matmul((f16(M, K), f16(M, K)), (f16(K, N), f16(K, N)), method="3m", multiply=f32(N))
gram(f16(M, K), alpha=0.5, precision="exact", out_dtype="f32")
einsum("mk,kn->mn", f16(M, K), f16(K, N))
einsum("mk,kn->nm", bf16(M, K), bf16(K, N), bias=bf16(M), activation="gelu")
einsum("mk,nk->nm", f32(M, K), f32(N, K), precision="f32")
einsum("lmk,kn->nlm", f16(L, M, K), f16(K, N), residual=f16(N, L, M), alpha=0.5)
einsum("ijkl,klm->mji", bf16(5, 9, 3, 16), bf16(3, 16, N), activation="tanh", multiply=bf16(N, 9, 5))
einsum("mk,kn->mn", f16(M, K), f16(K, N), multiply=f16(M, N), derivative="silu")
einsum("mk,kn->mn", f16(M, K), f16(K, N), multiply=f16(M, N), derivative="gelu", activation="relu",\
    bias=f32(1, N))
einsum("mk,kn->mn", f32(M, K), f32(K, N), dropout=0.25, seed=7, offset=3)
einsum("lmk,lkn->lmn", bf16(L, M, K), bf16(L, K, N), dropout=0.5, activation="relu", residual=bf16(L, M, N))
einsum("mk,kn->mn", f16(M, K), f16(K, N), out_dtype="f8e4m3", saturate=True)
einsum("mk,kn->mn", f32(M, K), f32(K, N), out_dtype="i8", saturate=True, alpha=3.0)
einsum("mk,kn->mn", f16(M, K), f16(K, N), split_k=2, reduction="workspace", bias=f16(N))
einsum("mk,kn->nm", f32(M, K), f32(K, N), split_k=2, reduction="turnstile")
einsum("bmk,bkn->bmn", f32(L, M, K), f32(L, K, N), precision="tf32")
einsum("bshk,khe->bhse", f16(2, M, 3, K), f16(K, 3, 40))
einsum("mk,kn->nm", f16(M, K), f16(K, N), c=f16(N, M), beta=0.5, batch_invariant=False)
einsum("mk,kn->mn", f32(M, K), f32(K, N), batch_invariant=True)
einsum("lmk,kn->nlm", c64(L, M, K), c64(K, N), conjugate_a=True, alpha=2.0, c=c64(N, L, M))
einsum("mk,kn->mn", c64(M, K), c64(K, N), conjugate_b=True)
einsum("lmk,kn->nlm", f16(L, M, K), f16(K, N), scale_a=f32(L, M), scale_b=f32(N), alpha=0.5)
einsum("mk,kn->mn", i8(M, K), i8(K, N), scale_a=f32(M), scale_b=2.0, out_dtype="f32")
einsum("k,k->", f32(K), f32(K))
einsum("m,n->mn", f16(M), f16(N))
gated_matmul(f16(M, K), f16(K, N), f16(K, N), multiply=f16(M, N), residual=f16(M, N), dropout=0.5, seed=7,\
    offset=3)
gated_matmul(f16(M, K), f16(K, N), f16(K, N))
gated_matmul(bf16(M, K), bf16.T(K, N), bf16.T(K, N), activation="gelu", bias_b=f32(N), bias_c=f32(N))
gated_matmul(i8(M, K), i8.T(K, N), i8.T(K, N), scale_a=f32(M), scale_b=f32(N), scale_c=f32(N))
gated_matmul(f16(M, K), f8e4m3.T(K, N), f8e4m3.T(K, N), scale_b=f32(N), scale_c=f32(N))
gated_matmul(f64(M, K), f64(K, N), f64(K, N), activation="relu")
gated_matmul(f16(L, M, K), f16(K, N), f16(K, N), split_k=2)
gated_matmul(f16(M, K), f16.T(K, N), f16.T(K, N), split_k=2, reduction="workspace", out_dtype="f32")
gated_matmul(f32(M, K), f32(K, N), f32(K, N), precision="tf32", batch_invariant=True)
reduced_matmul(f16(M, K), f16(K, N), "sum")
reduced_matmul(f16(M, K), f16.T(K, N), "max", -2)
reduced_matmul(bf16(M, K), bf16(K, N), ("max", "logsumexp"), bias=bf16(N))
reduced_matmul(f32(M, K), f32(K, N), ("sum", "min"), -2, alpha=0.5, activation="relu")
reduced_matmul(f16(M, K), f16(K, N), "logsumexp", product=f16(M, N))
reduced_matmul(f64(M, K), f64(K, N), ("sum", "max", "min", "logsumexp"))
reduced_matmul(f16(L, M, K), f16(K, N), "logsumexp", -2)
reduced_matmul(f8e4m3(M, K), f8e4m3.T(K, N), "max")
reduced_matmul(f32(M, K), f32(K, N), "sum", precision="tf32")
grouped_matmul(f16(M, K), f16(3, K, N), ends(M // 4, M // 4, M))
grouped_matmul(bf16(M, K), bf16.T(3, K, N), ends(M // 4, M // 2, M), bias=bf16(3, N), activation="silu")
grouped_matmul(f32(M, K), f32(3, K, N), ends(M // 4, M // 2, M - 1), f32(M, N), precision="tf32")
grouped_matmul(f64(M, K), f64(3, K, N), ends(0, M // 2, M))
grouped_matmul(i8(M, K), i8(3, K, N), ends(0, M // 2, M), out_dtype="i32")
grouped_matmul(bf16(M, K), bf16.T(3, K, N), ends(5, 9, M), alpha=2, c=bf16(N),\
    beta=0.5, dropout=0.5, seed=5, offset=7, residual=bf16(M, N))
grouped_matmul(f32(M, K), f32(3, K, N), ends(5, 9, M), multiply=f32(M, N), derivative="silu", saturate=True)
grouped_matmul(bf16.T(M, K), bf16(K, N), ends(5, 9, K))
grouped_matmul(f32(M, K), f32(K, N), ends(5, 9, K), bias=f32(3, N), activation="silu")
grouped_matmul([f16(33, 24), f16(M, K), f16(1, 8)], [f16(24, 72), f16(K, 24), f16(8, 136)], out=[f16(33,\
    72), f16(M, 24), f16(1, 136)])
grouped_matmul([bf16(40, 24), bf16(M, K)], [bf16.T(24, 72), bf16.T(K, 24)], out=[bf16(40, 72), bf16(M,\
    24)], bias=[bf16(72), bf16(24)], activation="relu")
grouped_matmul([f32(40, 24), f32(M, K)], [f32(24, 72), f32(K, 24)], out=[f16(40, 72), f16(M, 24)])
gemm_chain(f16(M, K), f16(K, 90), f16(90, 56), activation="relu", fused=True)
gemm_chain(bf16(M, K), bf16(K, 64), bf16(64, 17), activation="silu", fused=True)
gemm_chain(f16(L, M, K), f16(L, K, 96), f16(L, 96, 64))
gemm_chain(f32(M, K), f32(K, N), f32(N, 24), activation="gelu", fused=False)
gemm_chain(f64(M, K), f64(K, N), f64(N, 24), out=f64(M, 24))
gemm_chain(f16(M, K), f16(K, N), f16(N, 24), activation="relu", bias_b=f16(N), alpha=0.5, bias_c=f16(24),\
    multiply=f16(M, 24), dropout=0.5, seed=3, offset=4, residual=f16(24), out_dtype="f32")
gemm_chain(f32(M, K), f32(K, N), f32(N, 24), precision="tf32", out_dtype="i8", saturate=True)
attention(f16(2, 3, M, 64), f16(2, 3, N, 64), f16(2, 3, N, 64))
attention(bf16(1, 4, M, 128), bf16(1, 2, N, 128), bf16(1, 2, N, 128), causal=True, diagonal=N - M)
attention(f16(1, 2, M, 64), f16(1, 2, N, 64), f16(1, 2, N, 40), return_lse=True, scale=0.3)
attention(f32(2, M, 24), f32(2, N, 24), f32(2, N, 33), causal=True)
attention(f16(M, 256), f16(N, 256), f16(N, 200), out=f16(M, 200))
attention(bf16(1, 1, M, 64), bf16(1, 1, N, 64), bf16(1, 1, N, 64), lse=f32(1, 1, M))
attention(f16(1, 2, M, 64), f16(1, 2, N, 64), f16(1, 2, N, 40), out_dtype="f32")
attention(f16(1, 2, M, 64), f16(1, 2, N, 64), f16(1, 2, N, 64), causal=True, window=40, soft_cap=30.0)
attention(f16(1, 2, M, 64), f16(1, 2, N, 64), f16(1, 2, N, 64), bias=f32(M, N))
attention(f16(1, 2, M, 64), f16(1, 2, N, 64), f16(1, 2, N, 64), sinks=f32(2), dropout=0.5, seed=3, offset=4)
attention(f16(2, 2, M, 64), f16(2, 2, N, 64), f16(2, 2, N, 64), k_lengths=ends(5, N), causal=True)
attention(f16(2, 4, 3, 64), f16(9, 16, 2, 64), f16(9, 16, 2, 64), k_lengths=ends(5, 40), k_pages=table)
attention(f16(M, 2, 64), f16(N, 2, 64), f16(N, 2, 64), q_offsets=ends(0, M // 2, M), k_offsets=ends(0, 5, N))
col2im(f32(M, 36), (1, 1 + M, 2, 9), spatial=(1, 2), filter=(2, 2))
col2im(f16(4 * M, 6 * 8), (2, M + 2, 3, 8), spatial=(1, 2), filter=(3, 2), padding=0, stride=1)
col2im(f32(M, 3 * 4), out=f32(1, M + 2, 4), spatial=(1,), filter=(3,), accumulate=True)
col2im(i8(M, 3 * 4), (1, 2 * M + 1, 4), spatial=(1,), filter=(3,), stride=2)
col2im(f64(M, 3 * 8), (1, 8, M), spatial=(2,), filter=(3,), padding=1, channel=1, batch=0)
col2im(bf16(3, M, 2 * 4), (1, M + 2, 3, 4), spatial=(1,), filter=(2,), dilation=2, group=2)
col2im(f16(3, M, 2 * 4), (1, M + 1, 12), spatial=(1,), filter=(2,), groups=3)
""".replace("\\\n   ", "")
    .strip()
    .splitlines()
)
"""Calls of every member of the family with its options.

A dtype stands for an array: contiguous, transposed (``.T``), or with gaps between its rows (``.wide``)."""

EXTENTS = {
    "small": {"L": 3, "M": 70, "N": 72, "K": 40},
    "large": {"L": 4, "M": 2048, "N": 4096, "K": 1024},
    "deep": {"L": 2, "M": 96, "N": 256, "K": 8192},
}
MACHINES = {
    "x86-64-v4": (8, ("small",)),
    "aarch64": (8, ("small",)),
    "sm_90a": (132, ("small", "large", "deep")),
    "sm_80": (108, ("small",)),
    "gfx942": (304, ("small", "large")),
    "gfx1151": (20, ("small",)),
}
"""For each architecture: the machine's number of processors, and the extents to try."""

THREADS = (1, 2)
"""Numbers of threads for the part ``bits``."""

PROPOSED = 2000
"""Number of random problems for the part ``proposals``."""

RANKED = 10
"""Number of proposals to compare for each problem."""


class Memory:
    """Address space whose pages are allocated when they are written; every call starts at its beginning.

    Arrays therefore have the same distances at every run, and may be larger than the machine's memory.
    """

    size_bytes: ClassVar[int] = 1 << 38

    def __init__(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0x4000)
        self._bytes = np.frombuffer(mmap.mmap(-1, self.size_bytes, flags), np.uint8)
        self.used = 0

    def array(self, shape: Sequence[int], kind: Any) -> Any:
        """Allocate an array that begins at a multiple of 256 bytes, like a GPU's."""
        start, size = self.used, prod(shape) * np.dtype(kind).itemsize
        self.used += -(-size // 256) * 256 + 256
        return self._bytes[start : start + size].view(kind).reshape(shape)


MEMORY = Memory()


class Maker:
    """Makes arrays of a dtype; the number of earlier arrays seeds the random numbers.

    Args:
        kind: the dtype.
        made: list to which the arrays are appended.
        filled: whether to fill arrays with random numbers.
        order: ``"T"`` or ``"wide"``, as in `CALLS`.
    """

    def __init__(self, kind: tw.DType, made: list[Any], *, filled: bool, order: str = "") -> None:
        self._kind, self._made, self._filled, self._order = kind, made, filled, order
        if not order:
            self.T = Maker(kind, made, filled=filled, order="T")
            self.wide = Maker(kind, made, filled=filled, order="wide")

    def __call__(self, *shape: int) -> Any:
        held, kind, turned = list(shape), self._kind, self._order == "T"
        if turned:
            held[-2:] = held[:-3:-1]
        elif self._order == "wide":
            held[-1] += 24
        rng = np.random.default_rng(len(self._made))
        array: Any
        if kind.per_byte > 1:
            codes = tw.pack(rng.integers(0, 7, held), kind)
            array = tw.packed(codes.T if turned else codes, kind, 0 if turned else 1)
        else:
            array = MEMORY.array(held, kind.numpy)
            if self._filled:
                array[...] = drawn_numbers(rng, tuple(held), kind)
            array = array.swapaxes(-1, -2) if turned else array[..., : shape[-1]]
        self._made.append(array)
        return array


def drawn_numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: tw.DType) -> Any:
    """Draw random numbers of a dtype."""
    if kind in (tw.c32, tw.c64, tw.c128):
        parts = rng.standard_normal((*shape, 2)).astype(np.float32)
        return parts.astype({4: "f2", 8: "f4", 16: "f8"}[kind.bytes]).view(kind.numpy)[..., 0]
    if kind.numpy == np.bool_:
        return rng.integers(0, 2, shape).astype(bool)
    if not kind.is_float:
        return rng.integers(0 if kind.name.startswith("u") else -20, 21, shape).astype(kind.numpy)
    return normal(rng, shape, kind)


KINDS = {kind.name: kind for kind in vars(dtypes).values() if isinstance(kind, tw.DType)}
ENDS = ("matmul", "_mm", "einsum", "gram", "_chain", "attention", "col2im")
MEMBERS = [name for name in dir(tw) if name.endswith(ENDS)]
MEMBERS += ["rearrange_weights"]


def called(line: str, extents: Mapping[str, int], target: str, *, filled: bool) -> tuple[list[Any], Any]:
    """Make a call; return the arrays that were made for it, in order, and its result."""
    made: list[Any] = []

    def ends(*rows: int) -> Any:
        made.append(np.array(rows, np.int32))
        return made[-1]

    names: dict[str, Any] = {name: partial(getattr(tw, name), target=target) for name in MEMBERS}
    names |= {name: Maker(kind, made, filled=filled) for name, kind in KINDS.items()}
    table = np.array([[3, 0, 0], [2, 8, 1]], np.int32)
    names |= {
        "NF4": tw.NF4,
        "ends": ends,
        "table": table,
        "up": lambda extent, unit: -(-extent // unit),
        **extents,
    }
    RECORDED.arrays, MEMORY.used = made, 0
    forget_plans()
    return made, eval(line, names)


def forget_plans() -> None:
    """Make each operation plan its next call, because kept plans belong to other machines or arrays."""
    for name, module in sys.modules.copy().items():
        if name.startswith("tilewright.ops.") and hasattr(module, "_PLANS"):
            module._PLANS.forget()


# ---------------------------------------------------------------- machines that launch nothing


@dataclass
class Recorder:
    """Records launches: the arguments and the text of each."""

    pieces: list[str] = field(default_factory=list)
    arrays: list[Any] = field(default_factory=list)

    def place(self, array: Any) -> str:
        """Describe an argument of a launch, and the call's array that it lies in, if any."""
        info = describe(array)
        for at, one in enumerate(self.arrays):
            given = one.array if hasattr(one, "array") and not isinstance(one, np.ndarray) else one
            low, high = np.lib.array_utils.byte_bounds(np.asarray(given))
            if low <= info.pointer < high:
                start = info.pointer - describe(given).pointer
                return f"argument {at} + {start}: {info.dtype} {info.shape} {info.strides}"
        return f"{info.dtype} {info.shape} {info.strides}"

    def launched(self, prepared: Prepared, arguments: Sequence[Any]) -> None:
        """Record a launch."""
        executable, binding = prepared.executable, prepared.binding
        said = [
            self.place(argument) if parameter.kind == "tensor" else repr(argument)
            for parameter, argument in zip(prepared.parameters, arguments, strict=True)
        ]
        numbers = f"grid {binding.grid}, sizes {(*binding.sizes.values(),)}"
        memory = f"workspaces {(*binding.workspaces.values(),)}"
        self.pieces.append("\n".join((f"launch: {numbers}, {memory}", *said)))
        self.pieces.append(normal_text(executable.listing.text, executable.listing.entry))


RECORDED = Recorder()


class Prepared:
    """A launch that is recorded instead of executed."""

    may_be_inlined: ClassVar[bool] = False

    def __init__(self, executable: Any, binding: Any, parameters: Sequence[Any]) -> None:
        self.executable, self.binding, self.parameters = executable, binding, tuple(parameters)
        self.recent, self.seen = True, 0
        executable.launches.add(self)

    def inline(self) -> None:
        """Return None: this launch has no compiled shortcut."""

    def launch(self, arguments: Sequence[Any], pointers: Sequence[int], stream: Any) -> None:
        """Record the launch."""
        RECORDED.launched(self, arguments)


def machine(arch: str, processors: int) -> tuple[Target, type[Any]]:
    """Return a target with arrays in host memory, and a backend that emits texts but launches nothing."""
    whose = owner(arch)
    base: Any = {CPU.name: CpuBackend, CUDA.name: CudaBackend, HIP.name: HipBackend}[whose.name]

    def compile(self: Any, kernel: Any, _: str | None, listing: Any) -> Executable:  # noqa: A001 the protocol's
        return Executable(self.name, arch, kernel, listing)

    methods = {
        "name": arch,
        "arch_name": lambda self: arch,
        "processors": lambda self: processors,
        "device_name": lambda self: "",
        "compile": compile,
        "prepare": lambda self, *given: Prepared(*given),
    }
    record = replace(whose, name=arch, memory=HOST, serves=False, arch=arch)
    return record, type("Machine", (base,), methods)


@contextmanager
def machines() -> Iterator[None]:
    """Within this context the machines are targets, no measured tables are read, and warnings are off."""
    no_tables = patch.object(tables, "table_for", lambda *_: None)
    no_warning = patch.object(launching, "warn", lambda executable: None)
    known = {arch: machine(arch, processors) for arch, (processors, _) in MACHINES.items()}
    no_maps = patch.object(ListTable, "write_maps", lambda *_: None)  # only drivers encode these
    made = {arch: backend for arch, (_, backend) in known.items()}
    no_kept = patch.object(cache_files, "library", lambda: "")  # every text is made anew
    their_own = patch.object(backends, "BACKENDS", ChainMap[str, Any](made, backends.BACKENDS))
    with no_tables, no_warning, no_maps, no_kept, their_own, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        TARGETS.update({arch: record for arch, (record, _) in known.items()})
        try:
            yield
        finally:
            for arch in known:
                del TARGETS[arch]
            backends._made.cache_clear()


# ---------------------------------------------------------------- texts without their names

TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*|//[^\n]*|/\*.*?\*/'
    r"|[A-Za-z_]\w*|\d[\w.]*(?:(?<=[eEpP])[+-]\w+)?|\s+|.",
    re.MULTILINE | re.DOTALL,
)
_BUILT_IN = """
void bool char short int long float double signed unsigned auto half bfloat __half __nv_bfloat16 _Float16
uint2 uint4 float2 float4 int2 int4 size_t
"""
BUILT_IN = frozenset(_BUILT_IN.split())
BETWEEN = ("const", "volatile", "__restrict__", "__restrict", "*", "&", "__grid_constant__")
NO_TYPE = KEYWORDS - {*BUILT_IN}


def normal_text(text: str, entry: str) -> str:
    """Normalise a C text: remove comments, and replace declared names by numbers.

    Functions (except the kernel) and types keep their names, and so do names that the text does not declare:
    intrinsics, macros, assembly.  A name gets its number at its declaration, for the enclosing braces.  Each
    statement is on its own line, with a space between any two tokens.  Terms of integer sums and products
    are ordered by their original names; this order is kept.
    """
    text = re.sub(rf"\b{re.escape(entry)}(?=\b|_arguments\b|_block\b)", "KERNEL", text)
    types = {*BUILT_IN} | {*re.findall(r"(?<!<)\b(?:struct|union|enum|using)\s+(\w+)", text)}
    types |= {*re.findall(r"\bstruct\s+__\w+\([^)]*\)\s+(\w+)", text)}
    types |= {*re.findall(r"\btypedef\b[^;]*?(\w+)\s*(?:__attribute__[^;]*)?;", text)}
    words = _bare([t for t in TOKEN.findall(text) if not t.startswith(("//", "/*")) and not t.isspace()])
    out: list[str] = []
    scopes: list[dict[str, str]] = [{}]
    fields: dict[str, str] = {}
    local: set[str] = set()  # types of a template
    count, depth, in_arguments = 0, 0, False
    for at, word in enumerate(words):
        before, after = words[at - 1] if at else "", words[at + 1] if at + 1 < len(words) else ""
        made = word
        if word == "{":
            in_arguments |= depth == 0 and before == "KERNEL_arguments"
            depth += 1
            scopes.append({})
        elif word == "}":
            depth -= 1
            scopes.pop()
            in_arguments &= depth > 0
        elif before in ("class", "typename"):
            local.add(word)
        elif not (word[0].isalpha() or word[0] == "_") or word in KEYWORDS or word in types | local:
            pass
        elif before == "." or words[at - 2 : at] == ["-", ">"]:
            made = fields.get(word, word)
        elif _is_declared(words, at, types | local) and not (depth == 0 and after == "("):
            count += 1
            made = scopes[-1][word] = f"v{count}"
            if in_arguments:
                fields[word] = made
        else:
            made = next((scope[word] for scope in reversed(scopes) if word in scope), word)
        out.append(made.strip())
        if word in (";", "{", "}") or word.lstrip().startswith("#"):
            out.append("\n")
            if depth == 0:
                scopes, local = [{}], set()
                count = count if fields else 0
    return "\n".join(line.strip() for line in " ".join(out).splitlines())


def _bare(words: Sequence[str]) -> list[str]:
    """Remove braces around single statements; emitters add them if a line is too long."""
    found: list[str] = []
    opened: list[int] = []
    for word in words:
        if word == "{":
            opened.append(len(found))
        found.append(word)
        if word == "}":
            start = opened.pop()
            inner = found[start + 1 : -1]
            ends = [
                at
                for at, one in enumerate(inner)
                if one == ";" and inner[:at].count("(") == inner[:at].count(")")
            ]
            is_body = len(opened) > 0 and found[start - 1] in (")", "else")
            if is_body and ends == [len(inner) - 1] and not {"{", "if"} & {*inner}:
                found[start:] = inner
    return found


def _is_declared(words: Sequence[str], place: int, types: Set[str]) -> bool:
    """Whether a word is a declared name: it follows a type, perhaps with stars in between."""
    at = place - 1
    while at >= 0 and words[at] in BETWEEN:
        at -= 1
    return at >= 0 and words[at] in types and (at == 0 or words[at - 1] not in (".", ">", ":"))


# ---------------------------------------------------------------- the parts

Made = Iterator[tuple[str, Callable[[], list[str]]]]
"""An entry: its name, and the function that produces its texts."""


def texts() -> Made:
    """Yield each call on each machine."""
    for arch, (_, sizes) in MACHINES.items():
        for size in sizes:
            for line in CALLS:
                yield f"{arch}, {size}: {line}", partial(_launches, line, EXTENTS[size], arch)


def _launches(line: str, extents: Mapping[str, int], arch: str) -> list[str]:
    RECORDED.pieces = []
    try:
        called(line, extents, arch, filled=False)
    except Exception as error:  # noqa: BLE001 a call that fails is to fail in the same way
        RECORDED.pieces.append(failed(error))
    return RECORDED.pieces


def failed(error: Exception) -> str:
    """Return the entry of a call that fails; it leaves out the message, which may change."""
    return f"{'refused' if isinstance(error, TilewrightError) else 'FAILED'}: {type(error).__name__}"


def schedule_forms() -> Made:
    """Yield each schedule of the tests on each architecture."""
    for arch in MACHINES:
        for name, schedule in forms.FORMS.items():
            yield f"{arch}: form {name}", partial(_form, arch, partial(_expanded, schedule, arch))
        for name, case in small.CASES.items():
            yield f"{arch}: case {name}", partial(_form, arch, partial(_case, case, arch))


def _expanded(schedule: Any, arch: str) -> Any:
    return forms.expanded(schedule, arch=owner(arch).architecture(arch))


def _case(case: Any, arch: str) -> Any:
    given = case.arrays(case.shape(case.turns)).values()
    return case.bound.trace(*given, target=arch)


def _form(arch: str, trace: Callable[[], Any]) -> list[str]:
    backend = backends.backend_named(arch)
    try:
        kernel = trace()
        if broken := [*violations(kernel), *backend.violations(kernel, arch)]:
            raise LegalityError(kernel.name, arch, broken)
        listing = backend.listing(kernel, arch)
    except TilewrightError as error:
        return [failed(error)]
    assert listing is not None
    return [normal_text(listing.text, listing.entry)]


def proposals() -> Made:
    """Yield the proposals for the kernels of random calls."""
    for number in range(PROPOSED):
        draw = random.Random(f"proposals {number}")
        line, arch = draw.choice(CALLS), draw.choice((*MACHINES, "sm_90a"))
        few = draw.random() < 0.2
        extents = {"L": draw.randint(1, 9)}
        for name in "MNK":
            extent = round(2 ** draw.uniform(0, 13))
            unit = draw.choice((1, 1, 8, 64))
            extents[name] = max(-(-extent // unit) * unit, 4)
        extents["M"] = draw.randint(4, 16) if few else extents["M"]
        said = " ".join(f"{name}={extent}" for name, extent in extents.items())
        yield f"{number}: {arch}, {said}: {line}", partial(_proposed, line, extents, arch)


def _proposed(line: str, extents: Mapping[str, int], arch: str) -> list[str]:
    found: list[str] = []

    def planned(self: Bound, arguments: Any, target: Any) -> tuple[Plan, list[int]]:
        question = self.question(*arguments, target=target)
        if isinstance(question, LoopQuestion):  # its schedule follows from the form
            found.append(repr(self.schedule_for(*arguments, target=target)))
            return done(self, arguments)
        # The arguments of an explicit kernel, without the names of their classes.
        constants = re.sub(r"\b[A-Z]\w*\(", "(", ", ".join(map(repr, self.constants.values())))
        found.append(f"explicit: {constants}" if question is None else ranked(question))
        return done(self, arguments)

    def done(self: Bound, arguments: Any) -> tuple[Plan, list[int]]:
        silent = SimpleNamespace(walk=tuple)  # a kernel without operations has no slow one
        sets = {"launches": WeakSet[Any](), "holders": WeakSet[Any]()}
        executable = SimpleNamespace(target=arch, arch=arch, flow=None, kernel=silent, **sets)
        prepared: Any = Silent(executable, None, ())
        pairs = zip(self.program.parameters, arguments, strict=True)
        return Plan(prepared, ()), [describe(a).pointer for p, a in pairs if p.kind == "tensor"]

    with patch.object(Bound, "planned", planned):
        try:
            called(line, extents, arch, filled=False)
        except Exception as error:  # noqa: BLE001 as of texts
            found.append(failed(error))
    return found


def ranked(question: Any) -> str:
    """Return the first proposals for a problem, in order."""
    return "\n".join(
        f"{one.schedule!r} | {'against' if one.against else 'legal'} | {one.estimate:.9g}"
        for one in candidates(question)[:RANKED]
    )


class Silent(Prepared):
    """A launch that does nothing."""

    def launch(self, arguments: Sequence[Any], pointers: Sequence[int], stream: Any) -> None:
        """Nothing."""


def bits() -> Made:
    """Yield each call's result on this CPU; each number of threads runs in its own process."""
    for threads in THREADS:
        with patch.dict(os.environ, TILEWRIGHT_THREADS=str(threads)):
            pool = multiprocessing.get_context("spawn").Pool(1)
        with pool:
            for line in CALLS:
                yield f"{threads} threads: {line}", partial(pool.apply, result_of, (line,))


def result_of(line: str) -> list[str]:
    """Hash the result of a call, and its arrays, some of which it may have written."""
    try:
        made, result = called(line, EXTENTS["small"], CPU.name, filled=True)
    except Exception as error:  # noqa: BLE001 as of texts
        return [failed(error)]
    stored = [one for one in made if isinstance(one, np.ndarray)]
    return [hash_of(one) for one in (*flat(result), *stored)]


def flat(result: Any) -> Iterator[Any]:
    """Return the arrays of a result."""
    if isinstance(result, list | tuple):
        for one in result:
            yield from flat(one)
    else:
        yield np.asarray(result)


def hash_of(array: Any) -> str:
    """Hash dtype, shape and bits."""
    found = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:32]
    return f"{array.dtype} {array.shape} {found}"


PARTS: dict[str, Callable[[], Made]] = {
    "texts": texts,
    "forms": schedule_forms,
    "proposals": proposals,
    "bits": bits,
}

# ---------------------------------------------------------------- records

Record = dict[str, dict[str, list[str]]]
"""Hashes of the texts, by part and name."""


def produced(
    parts: Sequence[str], share: tuple[int, int] = (1, 1), only: str = ""
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield part, name and texts of the requested entries, without the folder of the repository.

    Args:
        parts: the parts to produce.
        share: (number, count) of the share of each part.
        only: a part of the names to produce.
    """
    spent: dict[str, float] = defaultdict(float)
    with machines():
        for part in parts:
            for at, (name, make) in enumerate(PARTS[part]()):
                if only not in name or at % share[1] != share[0] - 1:
                    continue
                begin = time.perf_counter()
                try:
                    made = make()
                except Exception as error:
                    error.add_note(f"while it produced {part}, {name}")
                    raise
                spent[part if part == "proposals" else f"{part}, {name.partition(':')[0]}"] += (
                    time.perf_counter() - begin
                )
                yield part, name, [piece.replace(str(ROOT), "") for piece in made]
    for what, seconds in spent.items():
        print(f"{seconds:8.1f} s  {what}")


def hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def differences(before: Record, now: Record, *, whole: bool) -> list[str]:
    """Return the names whose texts differ.

    Args:
        before: the recorded entries.
        now: the present entries.
        whole: whether a missing entry is a difference; else it was not requested.
    """
    found = []
    for part, made in now.items():
        was = before.get(part, {})
        for name, pieces in made.items():
            if name not in was:
                found.append(f"{part}: {name}: was not there before")
            elif was[name] != pieces:
                same = len(was[name]) == len(pieces)
                which = [
                    str(at)
                    for at, pair in enumerate(zip(was[name], pieces, strict=False))
                    if len({*pair}) > 1
                ]
                how = f"piece {', '.join(which)}" if same else f"{len(was[name])} pieces became {len(pieces)}"
                found.append(f"{part}: {name}: {how}")
        if whole:
            found += [f"{part}: {name}: is there no more" for name in was if name not in made]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--write", type=Path, help="a JSON file for the record")
    parser.add_argument("--against", type=Path, help="a record to compare with this tree")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=[*PARTS], help="default: all")
    parser.add_argument("--share", default="1/1", help="share of each part, such as 1/4")
    parser.add_argument("--only", default="", help="only names that contain this")
    parser.add_argument("--show", default="", help="print differences of the texts whose names contain this")
    asked = parser.parse_args()
    if (asked.write is None) == (asked.against is None):
        parser.error("say --write FILE or --against FILE")
    at, of = (int(number) for number in asked.share.split("/"))
    only, whole = asked.only or asked.show, (at, of) == (1, 1) and not (asked.only or asked.show)
    now: Record = {}
    kept: dict[str, str] = {}
    for part, name, pieces in produced(asked.part, (at, of), only):
        now.setdefault(part, {})[name] = [hashed(piece) for piece in pieces]
        kept |= {hashed(piece): piece for piece in pieces}
    counts = ", ".join(f"{len(made)} {part}" for part, made in now.items())
    for word in ("refused", "FAILED"):
        wrong = {key for key, text in kept.items() if text.startswith(word)}
        names = [name for made in now.values() for name, pieces in made.items() if wrong & {*pieces}]
        print(f"{len(names)} {word}", *names[: 0 if word == "refused" else 20], sep="\n  ")
    if asked.write is not None:
        everything = whole and [*asked.part] == [*PARTS]
        save(asked.write, {} if everything else recorded(asked.write), now, kept)
        print(f"{counts}, {len(kept)} texts: {asked.write}")
        return 0
    text = asked.against.read_text()
    read = json.loads(text.replace(" pack_weights(", " rearrange_weights("))  # the name in older records
    found = differences(read["record"], now, whole=whole)
    print(*found, sep="\n")
    if asked.show:
        show(asked.against, read["record"], now, kept)
    print(f"{counts}: {len(found)} differ from {read['commit']}")
    return bool(found)


def recorded(path: Path) -> Record:
    """Return the entries of a record; empty if the file does not exist."""
    read: dict[str, Record] = json.loads(path.read_text()) if path.exists() else {}
    return read.get("record", {})


def save(path: Path, record: Record, made: Record, kept: Mapping[str, str]) -> None:
    """Write entries into a record, and their texts into its archive."""
    texts = path.with_suffix(".zip")
    with zipfile.ZipFile(texts, "a" if record and texts.exists() else "w", zipfile.ZIP_DEFLATED) as file:
        for key in kept.keys() - {*file.namelist()}:
            file.writestr(key, kept[key])
    for part, names in made.items():
        record.setdefault(part, {}).update(names)
    path.write_text(json.dumps({"commit": commit(), "record": record}, indent=0) + "\n")


def show(path: Path, before: Record, now: Record, kept: Mapping[str, str]) -> None:
    """Print the differences between texts, each pair once."""
    shown: set[tuple[str, str]] = set()
    with zipfile.ZipFile(path.with_suffix(".zip")) as file:
        for part, made in now.items():
            for name, pieces in made.items():
                for pair in zip(before.get(part, {}).get(name, []), pieces, strict=False):
                    if pair[0] != pair[1] and pair not in shown:
                        shown.add(pair)
                        was, text = file.read(pair[0]).decode().splitlines(), kept[pair[1]].splitlines()
                        print(
                            *difflib.unified_diff(was, text, f"before: {name}", "now", lineterm=""), sep="\n"
                        )


@cache
def commit() -> str:
    """Return the commit of the source tree, by git."""
    command = ("git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*")
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
