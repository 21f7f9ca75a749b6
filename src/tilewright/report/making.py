"""Reports made in Python: of a kernel on arrays, or of a call of an operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from tilewright.argument_checks import is_number
from tilewright.calls import launches
from tilewright.errors import LaunchError, shown
from tilewright.report.facts import KernelFacts, runs_here
from tilewright.report.page import page_of
from tilewright.runtime.arrays import described
from tilewright.runtime.backends import backend_for
from tilewright.runtime.binding import arrays_of
from tilewright.runtime.gpu_memory import device_put
from tilewright.runtime.kernel import Bound, Kernel
from tilewright.runtime.outputs import check_output
from tilewright.runtime.specimens import Specimen, in_order, like, with_arrays
from tilewright.targets.target import CPU, REFERENCE, target_named
from tilewright.tune.gemm import OperationLaunch
from tilewright.tune.subject import by_name

PLANNED = "The operation was planned for arrays of this machine; its kernel is scheduled for the target."
"""The remark of a report on an operation for a target that this machine does not have."""


def must_be_planned(target: str, arch: str | None) -> bool:
    """Return whether a call for a target must be planned on the processor: it does not run on this machine.

    Args:
        target: the target.
        arch: the architecture; None: the target's own.
    """
    return target != REFERENCE.name and not runs_here(target, arch)


def rescheduled(subject: OperationLaunch, target: str) -> OperationLaunch:
    """Return the kernel of a call that was planned on this machine, to be scheduled for another target.

    Args:
        subject: the kernel of a call on the processor.
        target: the target.
    """
    kernel = Bound(subject.kernel.program, subject.kernel.constants)
    text = subject.text.removesuffix(f" on {CPU.name}") + f" on {target}"
    return replace(subject, kernel=kernel, target=target, text=text)


class KernelReport:
    """A report on a kernel, as data and as a page; made by `kernel_report`.

    Attributes:
        facts: the sections of the report, in JSON's types.
    """

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts = facts

    @cached_property
    def page(self) -> str:
        """The page: one HTML text that loads nothing."""
        return page_of(self.facts)

    @property
    def missing(self) -> dict[str, str]:
        """The reason for each section that this machine could not make."""
        sections = {name: one for name, one in self.facts.items() if isinstance(one, dict)}
        return {name: one["missing"] for name, one in sections.items() if "missing" in one}

    def save(self, path: str | PathLike[str]) -> None:
        """Write the page to a file.

        Args:
            path: the file.

        Raises:
            LaunchError: the file cannot be written.
        """
        check_output(Path(path))
        Path(path).write_text(self.page, encoding="utf-8")

    def _repr_html_(self) -> str:
        """Return the page as notebooks show it."""
        return f'<iframe srcdoc="{escape(self.page)}" style="width: 100%; height: 80vh"></iframe>'

    def __repr__(self) -> str:
        return f"<report on {self.facts['kernel']}, for {self.facts['target']} {self.facts['arch']}>"


@launches
def kernel_report(
    kernel: Any,
    *arguments: Any,
    target: str | None = None,
    arch: str | None = None,
    check_seconds: float = 4.0,
    measure: bool = True,
    **named: Any,
) -> KernelReport:
    """Collect everything that the library knows of a kernel: the page of ``tilewright report``, from Python.

    The page has the author's lines, the graph, the schedule and the reason for it, the kernel after each
    pass, the thread that holds each element, the pipeline, machine code, the checker's verdict, and the time.

    Args:
        kernel: a kernel, the result of `Kernel.bind`, or an operation such as `tw.matmul`, whose last kernel
            is shown.
        arguments: the arguments of a launch or of a call.  A `tw.like` value stands for an array.
        target: the target that the kernel is compiled for; default: where the arrays lie, or the processor.
        arch: the architecture, e.g. ``"sm_90a"``; default: that of this machine.  No GPU is needed.
        check_seconds: the checker begins no further size after this time, in seconds; 0: it does not run.
        measure: whether the kernel is timed if the target runs on this machine.
        named: arguments and constants by name.

    Returns:
        The report: ``facts`` are its sections in JSON's types, ``page`` is the HTML text, ``save(path)``
        writes it, ``missing`` has the reason for each section that this machine cannot make.  Notebooks show
        the page.

    Raises:
        LaunchError: the arguments do not fit, or the operation launches no kernel.
        LegalityError: the kernel breaks rules of the target.

    Example:
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="K N", C="M N")
        ... def product(A, B, C):
        ...     for m, n in tw.tiles(C):
        ...         acc = tw.zeros()
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ B[k, n]
        ...         C[m, n] = acc
        >>> square = tw.like("f32", 256, 256)
        >>> report = tw.kernel_report(product, square, square, square, check_seconds=0, measure=False)
        >>> report.facts["kernel"], report.facts["target"], len(report.facts["flow"]["nodes"]) > 3
        ('product', 'cpu', True)
        >>> report.page.startswith("<!DOCTYPE html>")
        True
    """
    if not is_number(check_seconds) or not check_seconds >= 0:
        raise LaunchError(f"check_seconds={shown(check_seconds)}; nearest legal choice: 0")
    if target is not None:
        known = target_named(target)
        if arch is not None:
            known.architecture(arch)
    if isinstance(kernel, Kernel | Bound):
        subject, note = _of_kernel(kernel, arguments, named, target), ""
    elif callable(kernel) and "target" in _parameters(kernel):
        subject, note = _of_call(kernel, arguments, named, target, arch)
    else:
        raise LaunchError(
            f"kernel_report: {shown(kernel)} is no kernel; nearest legal choice: a function decorated with "
            "@tw.kernel, its .bind(…), or an operation such as tw.matmul"
        )
    return KernelReport(KernelFacts(subject, subject.target, arch, check_seconds, measure, note).record())


def _of_kernel(
    kernel: Kernel | Bound, arguments: Any, named: dict[str, Any], target: str | None
) -> OperationLaunch:
    """Return a kernel on specimens of its arguments."""
    bound, rest = (kernel, named) if isinstance(kernel, Bound) else kernel._split(named)
    given = in_order(bound.program, arguments, rest, numbers=True)
    infos = arrays_of(bound.program, given)
    target = target or backend_for(bound.program.name, [*infos.items()], None).name
    names = [one.name for one in bound.program.parameters]
    found = {
        name: like(infos[name].dtype, infos[name].shape, strides=infos[name].strides)
        if name in infos
        else one
        for name, one in zip(names, given, strict=True)
    }
    text = f"{bound.program.name} of {by_name(found)} on {target}"
    return OperationLaunch(text, bound, tuple(found.values()), target)


def _parameters(call: Callable[..., Any]) -> tuple[str, ...]:
    """The names of an operation's parameters; none if it does not tell them."""
    try:
        return tuple(inspect.signature(call).parameters)
    except (TypeError, ValueError):
        return ()


def _of_call(
    call: Callable[..., Any], arguments: Any, named: dict[str, Any], target: str | None, arch: str | None
) -> tuple[OperationLaunch, str]:
    """Return the last kernel of an operation's call, and a remark on how it was found."""
    name = getattr(call, "__name__", shown(call))
    try:
        inspect.signature(call).bind(*arguments, **named)
    except TypeError as error:
        raise LaunchError(f"{name}: {error}; its arguments are {', '.join(_parameters(call))}") from None
    at = {**{f"argument {number}": one for number, one in enumerate(arguments)}, **named}
    arrays = {where: one for where, one in at.items() if hasattr(one, "shape") and hasattr(one, "dtype")}
    infos = [(where, described(name, where, one)) for where, one in arrays.items()]
    wanted = target or backend_for(name, infos, None).name
    is_absent = must_be_planned(wanted, arch)
    planned = CPU.name if is_absent else wanted

    def made(one: Any) -> Any:
        return device_put(with_arrays([one])[0], planned) if isinstance(one, Specimen) else one

    words = {where: made(one) for where, one in named.items()}
    text = f"{name} of {by_name(at)} on {planned}"
    found = OperationLaunch.of_call(text, call, [made(one) for one in arguments], words, planned)
    return (rescheduled(found, wanted), PLANNED) if is_absent else (found, "")
