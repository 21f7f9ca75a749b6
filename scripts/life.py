"""Draw the life of a kernel: docs/pictures/life.svg.

    python scripts/life.py

Each step names the place in the source that does it. A test compares the picture with `drawn`, and the places
with the source.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "pictures" / "life.svg"


class Step(NamedTuple):
    """A step in the life of a kernel: its name, its result, and the function or class that performs it."""

    verb: str
    result: str
    file: str
    name: str


STEPS = (
    Step("specialise", "a class for each array: dtype, strides, divisors", "runtime/binding.py", "spec_of"),
    Step("record", "a flow: the graph of what is computed", "runtime/scheduled.py", "RecordedFlow"),
    Step("choose", "a schedule: tiles, stages, instructions", "schedule/choice.py", "choose"),
    Step("expand, trace", "an explicit kernel: copies, barriers, MMAs", "schedule/expand.py", "Expanded"),
    Step("verify", "no broken rule, or one error with all of them", "ir/verify.py", "violations"),
    Step("lower", "the kernel after each pass, one decision each", "passes/pipeline.py", "run_passes"),
    Step("emit", "text in CUDA, HIP or C++", "targets/cuda/emit.py", "emit"),
    Step("compile", "machine code, kept for later processes", "runtime/cache.py", "Cache"),
    Step("launch", "the arrays hold the result", "runtime/gpu_launch.py", "GpuBackend"),
)
ASIDE = {
    "record": Step("evaluate", "the same numbers in NumPy", "dataflow/evaluate.py", "evaluate"),
    "lower": Step("check", "thread by thread: races, bounds", "runtime/checks.py", "BoundChecks"),
    "launch": Step("replay", "known arrays come here at once", "runtime/plans.py", "Plans"),
}
"""What branches off after a step, or for `replay` leads to it."""

WIDTH, ROW, LEFT, BOX, RIGHT, SIDE = 800, 66, 20, 430, 520, 260
INK, FAINT, LINE, BACK = "#1f2328", "#59636e", "#0a58b8", "#f6f8fa"


def box(x: int, y: int, width: int, step: Step, number: str = "") -> list[str]:
    """Return a step as SVG: its verb and result, and its place below."""
    title = f"{number}{step.verb}"
    return [
        f'<rect x="{x}" y="{y}" width="{width}" height="46" rx="6" fill="{BACK}" stroke="{LINE}"/>',
        (
            f'<text x="{x + 10}" y="{y + 19}" fill="{INK}"><tspan font-weight="bold">{escape(title)}</tspan>'
            f'<tspan fill="{INK}">: {escape(step.result)}</tspan></text>'
        ),
        f'<text x="{x + 10}" y="{y + 37}" fill="{FAINT}" font-size="11">{step.file}: {step.name}</text>',
    ]


def arrow(x: int, y: int, to_x: int, to_y: int) -> str:
    """Return an arrow."""
    return f'<path d="M{x} {y}L{to_x} {to_y}" stroke="{FAINT}" marker-end="url(#tip)"/>'


def drawn() -> str:
    """Return the picture as SVG."""
    height = ROW * len(STEPS) + 10
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" font-family="sans-serif" font-size="13">'
        ),
        "<title>The life of a kernel, from the author's function to the launch</title>",
        (
            f'<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{FAINT}"/></marker></defs>'
        ),
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for at, step in enumerate(STEPS):
        y = 10 + ROW * at
        parts += box(LEFT, y, BOX, step, f"{at + 1} ")
        if at:
            parts.append(arrow(LEFT + BOX // 2, y - ROW + 46, LEFT + BOX // 2, y))
        if step.verb in ASIDE:
            parts += box(RIGHT, y, SIDE, ASIDE[step.verb])
            ends = (LEFT + BOX, RIGHT) if step.verb != "launch" else (RIGHT, LEFT + BOX)
            parts.append(arrow(ends[0], y + 23, ends[1], y + 23))
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(drawn())
