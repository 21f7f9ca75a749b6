"""Write measured figures into the pages that quote them: `python scripts/measured.py`.

README.md quotes `benchmarks/results/h200_dense.json` and rows of `benchmarks/members.py`.  The tutorial's
steps quote `benchmarks/results/h200_tutorial.json`.  If a file is missing, its pages stay unchanged.
"""

from __future__ import annotations

import json
import math
import re
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
OURS, RIVAL = "tilewright", "cuBLAS"

HEADLINES = {
    "bf16 nt 4096³": "4096³",
    "bf16 nt 8192³": "8192³",
    "bf16 nt 16384³": "16384³",
    "bf16 nt 8192×14336×4096": "8192 × 14336 × 4096",
    "bf16 nn 4096³": "4096³, B contiguous along N",
    "bf16 nt 4096³ bias_gelu": "4096³, with bias and GELU, over PyTorch's fused call",
    "bf16 nt 4096³ residual": "4096³, with a residual, over PyTorch's best call",
    "f8e4m3 nt 8192³": "8192³ in fp8 (e4m3)",
}
"""Problems of the dense benchmark that the README quotes, and their names there."""

DEEPGEMM = "DeepGEMM's README: 1550 TFlops on an H800"

MEMBERS = {
    ("fp16 × fp8 + scale + bias, M ≤ 64", "cuBLAS fp16 alone"): "f16 by weights of fp8, up to 64 rows",
    ("the same, M ≥ 1024", "cuBLAS fp16 alone"): "f16 by weights of fp8, 1024 rows and more",
    ("the same, M ≤ 64", "three passes"): "f16 by weights of fp8, up to 64 rows",
    ("the same, 4096³", "three passes"): "f16 by weights of fp8, 4096³",
    ("the same, 8192³", "three passes"): "f16 by weights of fp8, 8192³",
    ("fp16 × int4, groups of 128, M ≤ 16", "cuBLAS fp16 alone"): "f16 by weights of 4 bits, up to 16 rows",
    ("fp8 × fp8 by row", "torch._scaled_mm"): "fp8 by fp8, a scale for each row and column",
    ("fp8 × fp8 by block", "torch._scaled_mm"): "fp8 by fp8, scales of blocks",
    ("the same", "DeepGEMM, same run"): "fp8 by fp8, scales of blocks",
    ("the same", DEEPGEMM): "fp8 by fp8, scales of blocks, not measured side by side",
    ("complex64, f32 grade", "cuBLAS CGEMM"): 'complex64 on tensor cores, `precision="f32"`',
    ("complex64, tf32 grade", "cuBLAS tf32 CGEMM"): 'complex64 on tensor cores, `precision="tf32"`',
    ("complex half", "four real GEMMs"): "complex numbers of f16",
    ("complex half", "six launches"): "complex numbers of f16",
    ("fp32-accurate real", "cuBLAS SGEMM"): 'f32 on tensor cores, `precision="f32"`',
    ("fp64", "cuBLAS DGEMM"): "f64",
    ("complex128", "cuBLAS ZGEMM"): "complex128",
    ("GEMM + bias + permute, 4096³", "two steps"): "a product with bias, its axes permuted, 4096³",
    ("the same, other extents", "two steps"): "a product with bias, its axes permuted, other extents",
    ("attention, 1024 keys", "cuDNN, FlashAttention"): "attention, 1024 keys",
    ("attention, 4096 keys and more", "cuDNN, FlashAttention"): "attention, 4096 keys and more",
    ("attention, D = 96, 192, 256", "cuDNN, FlashAttention"): "attention, heads of 96, 192, 256",
    ("attention, one query", "cuDNN, FlashAttention"): "attention, one query for each head",
    ("attention, 4 and 16 queries", "cuDNN, FlashAttention"): "attention, 4 and 16 queries for each head",
    ("gradients of attention", "cuDNN, FlashAttention"): "gradients of attention",
    ("packed sequences", "FlashAttention"): "attention of packed sequences",
    ("softmax(X W), N ≤ 2048", "two kernels"): "softmax(X W), N up to 2048",
    ("softmax(X W), other extents", "two kernels"): "softmax(X W), N = 8192",
    ("cross-entropy of a product", "PyTorch"): "cross-entropy of X W, which is not stored",
    ("complex64 on a processor", "NumPy"): "CPU: complex64",
    ("complex128 on a processor", "NumPy"): "CPU: complex128",
    ("fp64 on a processor", "NumPy"): "CPU: f64",
    ("fp16 × 8 bits on a processor, M ≤ 16", "NumPy"): "CPU: f16 by weights of 8 bits, up to 16 rows",
    ("the same, M > 16", "NumPy"): "CPU: f16 by weights of 8 bits, more than 16 rows",
    ("int8 → int32, AVX2", "our f32"): "CPU: i8, AVX2",
    ("int8 → int32, VNNI", "our f32"): "CPU: i8, VNNI",
}
"""Rows of `benchmarks/members.py` as (work, peer), and their names in the README."""

PEERS = {
    "cuBLAS fp16 alone": "cuBLAS on f16 weights, without scale and bias",
    "three passes": "PyTorch: convert, multiply, scale and add",
    "four real GEMMs": "cuBLAS: four real products",
    "six launches": "our four real products and two sums of them",
    "two steps": "PyTorch's product with bias, then a permuted copy",
    "DeepGEMM, same run": "DeepGEMM",
    "our f32": "our product in f32",
}
"""Peers of `benchmarks/members.py`, and what the README calls them."""

TABLE = re.compile(r"(<!-- measured: [^\n]* -->\n(?:\|[^\n]*\n){2}).*?(<!-- end -->)", re.DOTALL)
OF_MEMBERS = re.compile(r"(<!-- members: [^\n]* -->\n(?:\|[^\n]*\n){2}).*?(<!-- end -->)", re.DOTALL)
SHARE = re.compile(r"^Share of cuBLAS on an H200 \(bf16\): .*$", re.MULTILINE)


def pages() -> Iterator[tuple[Path, str]]:
    """Yield the pages that quote figures, each with its correct text."""
    dense, tutorial = RESULTS / "h200_dense.json", RESULTS / "h200_tutorial.json"
    if dense.exists():
        readme = ROOT / "README.md"
        text = with_table(readme.read_text(), json.loads(dense.read_text())["rows"])
        yield readme, with_members(text)
    if tutorial.exists():
        rows = json.loads(tutorial.read_text())["rows"]
        for step in sorted((ROOT / "docs" / "tutorial").glob("step*.py")):
            yield step, with_share(step.read_text(), [row for row in rows if row["step"] == step.stem])


def with_table(text: str, rows: list[dict[str, Any]]) -> str:
    """Return a page with its table of dense problems, each compared with the fastest of its rivals."""
    # Some problems are measured again with the hand-written kernel's schedule; the first row counts.
    timed = [row for row in reversed(rows) if row.get("speed")]
    found = {row["problem"]: slowest(row["speed"][OURS]) for row in timed}
    lines = [f"| {said} | {found[name]:.2f} |\n" for name, said in HEADLINES.items() if name in found]
    assert lines, "none of the problems that the README quotes was measured"
    return TABLE.sub(lambda match: match[1] + "".join(lines) + match[2], text)


def with_members(text: str) -> str:
    """Return a page with its table of all operations and their peers: geometric mean, minimum, maximum."""
    sys.path.append(str(ROOT / "benchmarks"))
    lines = []
    for work in runpy.run_path(str(ROOT / "benchmarks" / "members.py"))["ASKED"]:
        values = [speed.value for speed in work.speeds()]
        assert values or work.optional, f"{work.name} was not measured with {work.peer}"
        if values:
            mean = math.exp(sum(map(math.log, values)) / len(values))
            between = f"{min(values):.2f} to {max(values):.2f}" if len(values) > 1 else "one problem"
            reach = f"{mean:.2f} | {between}"
            beside = PEERS.get(work.peer, work.peer)
            lines.append(f"| {MEMBERS[work.name, work.peer]} | {beside} | {reach} |\n")
    return OF_MEMBERS.sub(lambda match: match[1] + "".join(lines) + match[2], text)


def slowest(speeds: dict[str, list[float]]) -> float:
    """Return the smallest of the speeds relative to PyTorch's calls: that relative to the fastest call."""
    return min(speed[0] for rival, speed in speeds.items() if rival.startswith(RIVAL))


def with_share(text: str, rows: list[dict[str, Any]]) -> str:
    """Return a step of the tutorial with its speed relative to cuBLAS."""
    assert rows, "a step was not measured"
    shares = ", ".join(f"{row['speed'][0]:.2f} at {row['shape'][0]}³" for row in rows)
    return SHARE.sub(f"Share of cuBLAS on an H200 (bf16): {shares}.", text)


def main() -> None:
    for path, text in pages():
        path.write_text(text)


if __name__ == "__main__":
    main()
