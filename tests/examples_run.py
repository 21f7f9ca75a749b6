"""Every kernel that an example defines must run in it, on `cpu` or `reference`; tracing is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

SOURCE = str(Path(__file__).parents[1] / "src")

SHOWN_ONLY = {
    "tilewright.ir.verify.violations": "the kernel is illegal, and the example lists its violations",
    "tilewright.targets.reference.recorder.ExecutionRecorder": "`run` executes the traced kernel",
    "tilewright.targets.reference.run.run": "likewise",
}
"""Examples whose kernels are not executed, and why."""


@contextmanager
def every_kernel_executed(example: str) -> Iterator[None]:
    """Fail if a kernel that is made meanwhile is neither launched nor checked."""
    kernel = import_module("tilewright.runtime.kernel")
    checks = import_module("tilewright.runtime.checks")
    made: dict[int, Any] = {}
    executed: set[int] = set()
    patch = pytest.MonkeyPatch()

    def noting(method: Any) -> Any:
        def noted(self: Any, *given: Any, **named: Any) -> Any:
            executed.add(id(self.program))
            return method(self, *given, **named)

        return noted

    def making(method: Any) -> Any:
        def init(self: Any, program: Any) -> None:
            if not program.function.__code__.co_filename.startswith(SOURCE):
                made[id(program)] = program
            method(self, program)

        return init

    patch.setattr(kernel.Kernel, "__init__", making(kernel.Kernel.__init__))
    patch.setattr(kernel.Bound, "_prepare", noting(kernel.Bound._prepare))
    patch.setattr(checks.BoundChecks, "check_sizes", noting(checks.BoundChecks.check_sizes))
    try:
        yield
    finally:
        patch.undo()
    only = [program.name for key, program in made.items() if key not in executed]
    if only and example not in SHOWN_ONLY:
        pytest.fail(f"{example}: no target executes {', '.join(only)}", pytrace=False)
    if not only and example in SHOWN_ONLY:
        pytest.fail(f"{example}: all kernels are executed; take it out of SHOWN_ONLY", pytrace=False)
