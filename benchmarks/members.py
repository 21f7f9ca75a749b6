"""The members of the family and their peers: the minimum and goal of each, and the measured speeds.

    python benchmarks/members.py [--out MEMBERS.md] [--picture results/members.svg]

Each row has its peer, the minimum speed and the goal.  Figures come from the records of the benchmarks in
results/, which say what was measured, where and at which commit.  This program measures nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from reporting import table

from tilewright.runtime.outputs import output
from tilewright.tune.figures import new_figure, save

HERE = Path(__file__).parent
RESULTS = HERE / "results"


OURS, DEEPGEMM = "tw.scaled_mm", "DeepGEMM"
PUBLISHED_TFLOPS = 1550.0
"""Highest TFlops in DeepGEMM's README, on an H800, without extents; both GPUs have a peak of 1979 in fp8."""
PUBLISHED = f"DeepGEMM's README: {PUBLISHED_TFLOPS:.0f} TFlops on an H800"


class Speed(NamedTuple):
    """Our speed over a peer's on one problem."""

    problem: str
    peer: str
    value: float


def of_problems(found: dict[str, Any]) -> Iterator[Speed]:
    """Read rows of one call each, whose speed is a text: 1.43 [1.42, 1.44]."""
    for row in found["rows"]:
        if row["speed"]:
            yield Speed(row["problem"], row["call"], float(row["speed"].split()[0]))


def of_published(found: dict[str, Any]) -> Iterator[Speed]:
    """Return our rate over the rate that DeepGEMM publishes; both GPUs have the same peak."""
    for row in found["rows"]:
        if row["call"] == OURS and (sides := re.search(r"by block \((\d+), (\d+), (\d+)\)", row["problem"])):
            operations = 2 * math.prod(map(int, sides.groups()))
            yield Speed(row["problem"], PUBLISHED, operations / row["us"] / 1e6 / PUBLISHED_TFLOPS)


def of_complex(found: dict[str, Any]) -> Iterator[Speed]:
    """Read rows of one product each, with the speeds relative to all of its peers."""
    for row in found["rows"]:
        planes = "planes" if row["planar"] else "interleaved"
        name = f"{row['dtype']} {planes} {row['method']} {row['precision']} {row['shape'][0]}³"
        for peer, value in row.get("speed", {}).items():
            yield Speed(name, peer, value[0] if isinstance(value, list) else value)


def of_grades(found: dict[str, Any]) -> Iterator[Speed]:
    """Read products of f32 at each grade."""
    for row in found["rows"]:
        yield Speed(f"{row['call']} {row['n']}³", "cuBLAS", row["speed"])


def of_attention(found: dict[str, Any]) -> Iterator[Speed]:
    """Read attention, relative to the faster of its peers."""
    for row in found["rows"]:
        shape = "x".join(map(str, row["shape"]))
        yield Speed(f"{row['dtype']} {shape} {row['layout']}", "the better", row["of_best"])


def of_dense(found: dict[str, Any]) -> Iterator[Speed]:
    """Read dense products with the schedules that are chosen for them."""
    for row in found["rows"]:
        for peer, value in row.get("speed", {}).get("tilewright", {}).items():
            yield Speed(row["problem"], peer, value[0])


def of_processors(found: dict[str, Any]) -> Iterator[Speed]:
    """Read products on a CPU."""
    for row in found["rows"]:
        for peer, value in row.get("speed", {}).items():
            shape = "x".join(map(str, row["shape"]))
            name = f"{row.get('isa', '')} {row['dtype']} {shape} {row.get('layout', '')}".strip()
            yield Speed(name, peer, value[0] if isinstance(value, list) else value)


Reader = Callable[[dict[str, Any]], Iterator[Speed]]
READERS: dict[str, tuple[Reader, ...]] = {
    "scaled": (of_problems, of_published),
    "int4": (of_problems,),
    "permuted": (of_problems,),
    "complex": (of_complex,),
    "accurate": (of_grades,),
    **dict.fromkeys(
        (
            *("attention_cuda", "attention_backward_cuda", "attention_varlen_cuda"),
            *("attention_rows_cuda", "attention_loss_cuda"),
        ),
        (of_attention,),
    ),
    "dense": (of_dense,),
    "gemm_cpu": (of_processors,),
    "scaled_cpu": (of_processors,),
    "integers_cpu": (of_processors,),
}


@dataclass(frozen=True)
class Work:
    """A row of the table.

    Args:
        name: the computation.
        peer: the peer.
        least: the minimum of our speed over the peer's.
        goal: the goal for it.
        file: the file with the measurements.
        problems: a pattern that the names of its problems match.
        call: the peer's name in that file.
        optional: whether the row may be missing, because the peer is not installed everywhere.
    """

    name: str
    peer: str
    least: float
    goal: float
    file: str
    problems: str
    call: str
    optional: bool = False

    def speeds(self) -> list[Speed]:
        """The measured speeds; empty if there are none."""
        path = RESULTS / self.file
        if not path.exists():
            return []
        found = json.loads(path.read_text())
        kept = [part["result"] for part in found["parts"] if part["result"]] if "parts" in found else [found]
        made = [speed for one in kept for read in READERS.get(one["benchmark"], ()) for speed in read(one)]
        return [one for one in made if one.peer == self.call and re.search(self.problems, one.problem)]


ALONE, PASSES, MIXED = "cuBLAS fp16 alone", "three passes", r"^f16 x f8e4m3, contiguous along k "
DECODE, BACKWARD, ROWS = "h200_decode.json", "h200_attention_backward.json", "h200_softmax_rows.json"
SCALED, COMPLEX, ATTENTION = "h200_scaled.json", "h200_complex.json", "h200_attention.json"
BLOCKS, INTEGERS = "h200_scaled_blocks.json", "cpu_integers.json"
PERMUTED, CUBE = "h200_permuted.json", r"(2x2048x(32x128|64x64)|64x64x64x64)x4096"
ON_HOST, WIDE = ("cpu_scaled.json",), "NumPy, in f32"
FEW, MANY, KEYS = r"\((1|16|64), ", r"\((1024|4096|8192), ", r"x\d+x\d+x"

ASKED = (
    Work("fp16 × fp8 + scale + bias, M ≤ 64", ALONE, 1.4, 1.8, SCALED, MIXED + FEW, ALONE),
    Work("the same, M ≥ 1024", ALONE, 0.9, 1.0, SCALED, MIXED + MANY, ALONE),
    Work("the same, M ≤ 64", PASSES, 4.0, 7.0, SCALED, MIXED + FEW, PASSES),
    Work("the same, 4096³", PASSES, 1.5, 1.75, SCALED, MIXED + r"\(4096, 4096, 4096\)", PASSES),
    Work("the same, 8192³", PASSES, 1.1, 1.25, SCALED, MIXED + r"\(8192, ", PASSES),
    Work(
        "fp16 × int4, groups of 128, M ≤ 16",
        ALONE,
        1.8,
        3.0,
        "h200_int4.json",
        r"^f16 .*128 \((1|4|8|16), ",
        ALONE,
    ),
    Work("fp8 × fp8 by row", "torch._scaled_mm", 0.95, 1.1, SCALED, "by row", "torch._scaled_mm"),
    Work("fp8 × fp8 by block", "torch._scaled_mm", 0.95, 1.1, BLOCKS, "by block", "torch._scaled_mm"),
    Work("the same", "DeepGEMM, same run", 0.95, 1.1, BLOCKS, "by block", DEEPGEMM, optional=True),
    Work("the same", PUBLISHED, 0.95, 1.1, BLOCKS, "by block", PUBLISHED),
    Work("complex64, f32 grade", "cuBLAS CGEMM", 2.5, 4.5, COMPLEX, r"^f32 .* 4m f32 ", "cuBLAS"),
    Work("complex64, tf32 grade", "cuBLAS tf32 CGEMM", 1.6, 2.4, COMPLEX, r"^f32 .* 4m tf32 ", "cuBLAS"),
    Work(
        "complex half", "four real GEMMs", 0.95, 1.05, COMPLEX, r"^f16 .* 4m ", "four real products (cuBLAS)"
    ),
    Work("complex half", "six launches", 1.0, 1.15, COMPLEX, r"^f16 .* 4m ", "six launches"),
    Work("fp32-accurate real", "cuBLAS SGEMM", 2.5, 4.0, "h200_accurate.json", r"^f32 ", "cuBLAS"),
    Work("fp64", "cuBLAS DGEMM", 0.9, 1.1, "h200_f64.json", r"^f64 ", "cuBLAS"),
    Work("complex128", "cuBLAS ZGEMM", 0.9, 1.1, COMPLEX, r"^f64 ", "cuBLAS"),
    Work("GEMM + bias + permute, 4096³", "two steps", 1.2, 1.35, PERMUTED, CUBE, "two steps"),
    Work("the same, other extents", "two steps", 1.2, 1.35, PERMUTED, f"^(?!.*{CUBE})", "two steps"),
    Work(
        "attention, 1024 keys",
        "cuDNN, FlashAttention",
        0.92,
        1.05,
        ATTENTION,
        "x1024x(64|128) ",
        "the better",
    ),
    Work(
        "attention, 4096 keys and more",
        "cuDNN, FlashAttention",
        *(0.97, 1.05, ATTENTION, "x(4096|16384)x(64|128) ", "the better"),
    ),
    Work(
        "attention, D = 96, 192, 256",
        "cuDNN, FlashAttention",
        *(0.8, 1.05, ATTENTION, "x(96|192|256) ", "the better"),
    ),
    Work(
        "attention, one query",
        "cuDNN, FlashAttention",
        *(1.0, 1.2, DECODE, r"x1x\d+x(64|128) ", "the better"),
    ),
    Work(
        "attention, 4 and 16 queries",
        "cuDNN, FlashAttention",
        *(1.0, 1.2, DECODE, r"x(4|16)x\d+x(64|128) ", "the better"),
    ),
    Work("gradients of attention", "cuDNN, FlashAttention", *(0.65, 1.0, BACKWARD, "", "the better")),
    Work("packed sequences", "FlashAttention", *(1.0, 1.1, "h200_varlen.json", "", "the better")),
    Work("softmax(X W), N ≤ 2048", "two kernels", *(1.1, 1.4, ROWS, r"x(1024|2048)x1024 ", "the better")),
    Work("softmax(X W), other extents", "two kernels", *(0.95, 1.4, ROWS, r"x8192x\d+ ", "the better")),
    Work("cross-entropy of a product", "PyTorch", *(1.0, 1.3, "h200_loss.json", "", "the better")),
    Work("complex64 on a processor", "NumPy", 0.9, 1.05, "cpu_complex.json", r"^f32 .* 4m ", "NumPy"),
    Work("complex128 on a processor", "NumPy", 0.9, 1.05, "cpu_complex.json", r"^f64 ", "NumPy"),
    Work("fp64 on a processor", "NumPy", 0.9, 1.05, "cpu_f64.json", r"^f64 ", "NumPy"),
    Work("fp16 × 8 bits on a processor, M ≤ 16", "NumPy", 1.0, 1.5, *ON_HOST, r" (1|4|16)x\d+x", WIDE),
    Work("the same, M > 16", "NumPy", 1.0, 1.5, *ON_HOST, r" (64|256)x\d+x", WIDE),
    Work("int8 → int32, AVX2", "our f32", 0.9, 0.9, INTEGERS, r"^AVX2 i8", "tilewright f32"),
    Work("int8 → int32, VNNI", "our f32", 2.0, 2.0, INTEGERS, r"VNNI i8", "tilewright f32"),
)


def rows() -> dict[Work, list[Speed]]:
    """Return the rows of the table with their measurements."""
    found = {work: work.speeds() for work in ASKED}
    return {work: speeds for work, speeds in found.items() if speeds or not work.optional}


HEAD = ("work", "peer", "minimum", "goal", "mean", "slowest", "problem", "fastest", "minimum reached by")


def line(work: Work, speeds: Sequence[Speed]) -> tuple[object, ...]:
    """Return a row of the table."""
    asked = (work.name, work.peer, f"{work.least:g}", f"{work.goal:g}")
    if not speeds:
        return *asked, *("not measured",) * 5
    worst, best = min(speeds, key=lambda one: one.value), max(speeds, key=lambda one: one.value)
    mean = statistics.geometric_mean(one.value for one in speeds)
    reached = sum(one.value >= work.least for one in speeds)
    figures = f"{mean:.2f}", f"{worst.value:.2f}", worst.problem, f"{best.value:.2f}"
    return *asked, *figures, f"{reached} of {len(speeds)}"


def page(measured: dict[Work, list[Speed]], picture: str) -> str:
    """Return the table, followed by every problem."""
    intro = (
        "# The members and their peers\n\n"
        "`python benchmarks/members.py` writes this page from [results/](results).\n"
        "A speed is ours relative to the peer's, measured in turns; above 1 we are faster.\n"
        "Means are geometric.\n"
        f"One row is an exception: its speeds are our TFlops over {PUBLISHED_TFLOPS:.0f}, the highest\n"
        "number in DeepGEMM's README, which was measured on an H800, without extents. That GPU and ours\n"
        "have the same peak in fp8, but different clocks under load and different memory.\n"
        "Minimum and goal are those of this project. NOTES.md has the commits of the files.\n"
    )
    parts = [
        intro,
        f"![each problem of each row, with minimum and goal]({picture})\n",
        markdown(HEAD, [line(work, speeds) for work, speeds in measured.items()]),
    ]
    for work, speeds in measured.items():
        if speeds:
            told = ", ".join(f"{one.problem} **{one.value:.2f}**" for one in speeds)
            parts.append(f"{work.name} [{work.peer}], `{work.file}`: {told}.\n")
    return "\n".join(parts)


def markdown(head: Sequence[str], lines: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    rows = [head, ["---"] * len(head), *lines]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)


def draw(measured: dict[Work, list[Speed]], path: Path) -> None:
    """Draw each problem as a point in the line of its row, which shows minimum and goal."""
    shown = {work: speeds for work, speeds in measured.items() if speeds}
    figure = new_figure((9, 0.42 * len(shown) + 1.2))
    axes = figure.subplots()
    for at, (work, speeds) in enumerate(shown.items()):
        axes.plot(
            [work.least, work.goal], [at, at], color="0.8", linewidth=9, solid_capstyle="butt", zorder=1
        )
        for one in speeds:
            color = (
                "tab:green"
                if one.value >= work.goal
                else "tab:blue"
                if one.value >= work.least
                else "tab:red"
            )
            axes.plot(one.value, at, "o", color=color, markersize=5, alpha=0.8, zorder=2)
    axes.axvline(1, color="0.4", linewidth=0.8)
    axes.set_xscale("log")
    ticks = (0.5, 0.7, 1, 1.5, 2, 3, 5, 8)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_yticks(range(len(shown)), [f"{work.name}  [{work.peer}]" for work in shown], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("our speed over the peer's; the bar reaches from what is asked at least to the goal")
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "MEMBERS.md")
    parser.add_argument("--picture", type=Path, default=RESULTS / "members.svg")
    asked = parser.parse_args()
    measured = rows()
    draw(measured, asked.picture)
    with output(asked.out) as file:
        file.write(page(measured, str(asked.picture.relative_to(asked.out.parent))).encode())
    print(table(HEAD, [line(work, speeds) for work, speeds in measured.items()]))


if __name__ == "__main__":
    main()
