"""The passes of each target by name: after each, the kernel is legal IR, and no note is lost."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.programs import CliRunner

import tilewright as tw
from tilewright.cli.verbs import app
from tilewright.errors import LaunchError
from tilewright.inspect.report import after, difference, listed
from tilewright.ir.kernel import Kernel
from tilewright.ir.parser import parse_kernel
from tilewright.ir.printer import print_kernel
from tilewright.passes.pipeline import TRACED, Stage, stages
from tilewright.runtime.backends import backend_named
from tilewright.targets.target import CUDA, target_named

EXAMPLES = Path(__file__).parents[2] / "examples"
GEMM = str(EXAMPLES / "02_basic_gemm.py") + ":LARGE"


def example(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / name))


def square(kernel: Any, dtype: str) -> Kernel:
    return kernel.trace(*(tw.like(dtype, 512, 512) for _ in range(3)))


KERNELS: dict[str, Callable[[], Kernel]] = {
    "basic": lambda: square(example("02_basic_gemm.py")["LARGE"], "f16"),
    "hopper": lambda: square(example("03_hopper_gemm.py")["bind"](tw.bf16), "bf16"),
    "optimized": lambda: square(example("04_optimized_gemm.py")["LARGE"], "f16"),
}
TARGETS = {"cuda": "sm_90a", "cpu": "x86-64-v3"}


def staged(name: str, target: str) -> tuple[Stage, ...]:
    record = target_named(target)
    chosen = record.architecture(TARGETS.get(target) or backend_named(target).arch_name())
    return tuple(stages(KERNELS[name](), chosen, backend_named(target).passes))


@pytest.mark.parametrize(
    ("name", "target"),
    [("basic", "cuda"), ("hopper", "cuda"), ("optimized", "cuda"), ("basic", "cpu"), ("basic", "reference")],
)
def test_the_kernel_after_each_pass_prints_and_parses(name: str, target: str) -> None:
    found = staged(name, target)
    assert [stage.name for stage in found] == [TRACED, *(one.name for one in backend_named(target).passes)]
    assert len({stage.name for stage in found}) == len(found)
    for stage in found:
        text = after(found, stage.name)
        assert print_kernel(parse_kernel(text)) == print_kernel(stage.kernel)
    notes = [note for stage in found for note in stage.notes]
    listing = backend_named(target).listing(found[0].kernel, TARGETS.get(target))
    if listing is None:
        assert target == "reference"
        return
    assert print_kernel(found[-1].kernel) == print_kernel(listing.kernel)
    assert list(listing.notes[: len(notes)]) == notes
    assert all(f"# {stage.name}: {note}" in text for stage in found for note in stage.notes)


def test_the_difference_of_two_passes_is_what_the_second_did() -> None:
    found = staged("basic", "cuda")
    changed = difference(found, "swizzles", "widths").splitlines()
    assert changed[:2] == ["--- basic_gemm after swizzles", "+++ basic_gemm after widths"]
    added = [line for line in changed[2:] if line.startswith("+")]
    assert added
    assert all("copy" in line and "vector=" in line for line in added)
    assert difference(found, "inverses", "inverses") == (
        "no difference: basic_gemm is the same after inverses and after inverses"
    )


def test_a_pass_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(LaunchError, match=r"no pass 'width'; choose one of trace, .*; did you mean 'widths'"):
        after(staged("basic", "cuda"), "width")
    assert "- sA re-laid out" in listed(staged("basic", "cuda"))


def test_the_command_line_shows_passes_and_differences() -> None:
    asked = ["inspect", GEMM, "--target=cuda", "--arch=sm_80", "--dtype=f16", "--shape=512x512x512"]
    shown = CliRunner().invoke(app, [*asked, "--passes"])
    assert shown.exit_code == 0, shown.output
    assert [line.split()[0] for line in shown.output.splitlines() if line[0] != " "] == [
        TRACED,
        *(one.name for one in backend_named(CUDA.name).passes),
    ]
    shown = CliRunner().invoke(app, [*asked, "--after", "widths"])
    assert shown.output.startswith("# tilewright ir ")
    assert "vector=8" in shown.output
    shown = CliRunner().invoke(app, [*asked, "--after", "swizzles", "--after", "widths"])
    assert "\n+copy(acc, C_tile, vector=2)" in shown.output
    refused = CliRunner().invoke(app, [*asked, *("--after", "trace") * 3])
    assert "--after is given 3 times; nearest legal choice: --after trace --after trace" in refused.stderr
