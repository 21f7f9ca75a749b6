"""Code that every verb shares: printed steps, a spinner, plain errors, Ctrl-C, options, the line of times."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Annotated, Any, ParamSpec

import typer
import typer.core

from tilewright.checking.compare import GemmComparison
from tilewright.checking.flows import StoredComparison
from tilewright.cli import INTERRUPTED
from tilewright.dtypes import DType, f32
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import HazardError, TilewrightError, WrongResultError, nearest_name
from tilewright.ops.ending import ACTIVATIONS
from tilewright.runtime.outputs import check_output, output
from tilewright.targets.target import MEANT, TARGETS
from tilewright.tune.measure import QUICK, Measurement, measure, perf_line
from tilewright.tune.rivals import Calls
from tilewright.tune.trial import OURS, FlowTrial

# ---------------------------------------------------------------- Ctrl-C
#
# It ends the command at once, or raises an error if the command must clean up.

_at_once: list[Callable[..., object]] = []


def end_at_once(handler: Callable[..., object]) -> None:
    """Make Ctrl-C end the command at once, unless a shell or a program has set another handler."""
    if _ours(signal.default_int_handler):
        signal.signal(signal.SIGINT, handler)
        _at_once[:] = [handler]


@contextlib.contextmanager
def raised() -> Iterator[None]:
    """Make Ctrl-C raise `KeyboardInterrupt` in this context."""
    if not _at_once or not _ours(_at_once[0]):
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _at_once[0])


def _ours(handler: Callable[..., object]) -> bool:
    main = threading.current_thread() is threading.main_thread()
    return main and signal.getsignal(signal.SIGINT) is handler


# ---------------------------------------------------------------- answers as data


class VerbAnswer:
    """The answer of a verb as one JSON object: its steps, its text, its facts, and its error.

    Args:
        verb: the name of the verb.
    """

    def __init__(self, verb: str) -> None:
        self.verb = verb
        self.steps: list[dict[str, str]] = []
        self.facts: dict[str, Any] = {}
        self.error: dict[str, Any] | None = None

    def record(self, status: int, text: str) -> dict[str, Any]:
        """Return the object.

        Args:
            status: the exit status.
            text: what the verb printed.
        """
        made = {"verb": self.verb, "status": status, **self.facts}
        made |= {"error": self.error} if self.error is not None else {}
        return made | {"steps": self.steps, "text": text.splitlines()}


_answer: ContextVar[VerbAnswer | None] = ContextVar("the answer that is asked for as data", default=None)


def tell(**facts: Any) -> None:
    """Add facts, in JSON's types, to the answer, if ``--json`` asks for one."""
    if (answer := _answer.get()) is not None:
        answer.facts |= facts


def step(name: str, text: str, fix: str = "") -> None:
    """Add a step, its outcome and a command that mends it to the answer, if ``--json`` asks for one."""
    if (answer := _answer.get()) is not None:
        answer.steps.append({"step": name, "text": text} | ({"fix": fix} if fix else {}))


class _Copied(io.StringIO):
    """A stream that keeps its text, and copies it to another stream."""

    def __init__(self, shown: Any) -> None:
        super().__init__()
        self.shown = shown

    def write(self, text: str) -> int:
        if self.shown is not None:
            self.shown.write(text)
        return super().write(text)

    def flush(self) -> None:
        if self.shown is not None:
            self.shown.flush()


REFUSED_WORDS: Any = typer.BadParameter.__mro__[1]
"""The error class for wrong arguments of a command; typer does not export it."""


class Answering(typer.core.TyperCommand):
    """A verb with the option ``--json``, which gives its answer as one JSON object."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs["epilog"] = (
            "--json: answer with one JSON object, also in case of an error; --json=FILE.json writes it there."
        )
        super().__init__(*args, **kwargs)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take ``--json`` from the arguments; if the other arguments are wrong, the answer is that error."""
        place, words = _place_of_answer(args)
        ctx.meta["answer"] = place
        if place is None:
            return super().parse_args(ctx, words)
        try:
            if place != "-":
                check_output(Path(place))
            return super().parse_args(ctx, words)
        except (REFUSED_WORDS, TilewrightError) as error:
            answer = VerbAnswer(ctx.info_name or "")
            message = error.format_message() if isinstance(error, REFUSED_WORDS) else str(error)
            answer.error = {"type": "UsageError", "message": message}
            complain(message)
            _write_answer(answer, "-" if isinstance(error, TilewrightError) else place, BAD_INPUT, "")
            raise typer.Exit(BAD_INPUT) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the verb; with ``--json`` its text is kept, and the object is printed at its end."""
        place = ctx.meta.get("answer")
        if place is None:
            return super().invoke(ctx)
        answer, status = VerbAnswer(ctx.info_name or ""), OK
        kept, token = _Copied(sys.stderr if place == "-" else sys.stdout), _answer.set(answer)
        try:
            with contextlib.redirect_stdout(kept):
                super().invoke(ctx)
        except typer.Exit as ended:
            status = ended.exit_code
        finally:
            _answer.reset(token)
        _write_answer(answer, place, status, kept.getvalue())
        raise typer.Exit(status)


def _place_of_answer(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the place of the answer, ``"-"`` for the standard output, and the other words.

    ``--json`` takes the next word if it is ``-``, a path below /dev, or a .json file that does not exist or
    holds an earlier answer.  Any other .json file is an argument, which the answer must not overwrite.
    """
    rest = list(words)
    for at, word in enumerate(rest):
        if word == "--":
            break
        if word.startswith("--json="):
            return word.removeprefix("--json=") or "-", rest[:at] + rest[at + 1 :]
        if word == "--json":
            following = rest[at + 1] if at + 1 < len(rest) else ""
            if following == "-" or following.startswith("/dev/") or _may_hold_answer(following):
                return ("-" if following == "/dev/stdout" else following), rest[:at] + rest[at + 2 :]
            return "-", rest[:at] + rest[at + 1 :]
    return None, rest


def _may_hold_answer(word: str) -> bool:
    """Return whether a word names a .json file that is absent or empty, or that holds an earlier answer."""
    if not word.endswith(".json"):
        return False
    try:
        text = Path(word).read_bytes()
        return not text or "verb" in json.loads(text)
    except OSError:
        return True
    except (ValueError, TypeError):
        return False


def _write_answer(answer: VerbAnswer, place: str, status: int, text: str) -> None:
    made = json.dumps(answer.record(status, text), indent=1, default=str)
    if place == "-":
        typer.echo(made)
        return
    with output(Path(place)) as file:
        file.write(f"{made}\n".encode())


# ---------------------------------------------------------------- printing


OK = 0

WRONG = 1
"""Exit status of a wrong result."""

BAD_INPUT = 2
"""Exit status of a request that cannot be served."""

Parameters = ParamSpec("Parameters")


class UsageError(TilewrightError, ValueError):
    """A request that cannot be served; says what to ask instead."""


def file_to_write(text: str) -> Path:
    """Read the path of a file to write.

    Raises:
        BadParameter: the path ends as that of a directory, which `Path` would forget.
    """
    if text.endswith(("/", os.sep)):
        raise typer.BadParameter(f"{text} names a directory; nearest legal choice: {text}c.npy, a file in it")
    return Path(text)


def choose(what: str, given: str, known: Sequence[str]) -> None:
    """Check that one of several words was given.

    Raises:
        UsageError: another word was given; lists the known words, and the nearest one.
    """
    if given not in known:
        near = MEANT[given] if MEANT.get(given) in known else nearest_name(given, known, 0.6)
        nearest = f"nearest: {near}; " if near else ""
        raise UsageError(f"unknown {what} {given!r}; {nearest}choose one of {', '.join(known)}")


def choose_precision(given: str, known: Sequence[str], dtype: str) -> None:
    """Check that a precision is legal for a dtype.

    Args:
        given: the word.
        known: the words for precisions; ``"exact"`` is legal for every dtype.
        dtype: the dtype of the operands.

    Raises:
        UsageError: the word is unknown, or not legal for this dtype.
    """
    choose("precision", given, known)
    element = dtype_named(dtype)
    legal = [word for word in known if word not in OF_PRECISION or OF_PRECISION[word][1](element)]
    if given not in legal:
        raise UsageError(
            f"--precision {given} determines how {OF_PRECISION[given][0]} multiplied, and these numbers "
            f"are {dtype}; nearest: --precision {legal[-1]}"
        )


OF_PRECISION: dict[str, tuple[str, Callable[[DType], bool]]] = {
    "tf32": ("f32 is", lambda dtype: dtype == f32),
    "f16": ("f32 is", lambda dtype: dtype == f32),
    "f32": ("floats of up to 32 bits are", lambda dtype: dtype.is_float and dtype.bits <= f32.bits),
}
"""The dtypes for which a precision is legal, in words and as a condition; others are legal for all."""


def reports(verb: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """Make a verb report errors in a paragraph, and exit with 1 (wrong result) or 2 (bad request)."""

    @functools.wraps(verb)
    def run(*args: Parameters.args, **kwargs: Parameters.kwargs) -> None:
        try:
            with raised():
                verb(*args, **kwargs)
            if sys.stdout is not None:
                sys.stdout.flush()
        except (WrongResultError, HazardError) as error:
            raise _stop(str(error), WRONG, error) from None
        except TilewrightError as error:
            raise _stop(str(error), BAD_INPUT, error) from None
        except MemoryError as error:
            raise _stop(f"not enough memory: {error or 'the matrices are too large'}", BAD_INPUT) from None
        except OSError as error:
            _keep_error(error, str(error))
            raise typer.Exit(refused(error)) from None
        except KeyboardInterrupt:
            raise _stop("interrupted", INTERRUPTED) from None

    return run


def _stop(message: str, status: int, error: BaseException | None = None) -> typer.Exit:
    _keep_error(error, message)
    complain(message)
    return typer.Exit(status)


def _keep_error(error: BaseException | None, message: str) -> None:
    """Put an error into the answer, if ``--json`` asks for one."""
    if (answer := _answer.get()) is not None:
        answer.error = {"type": type(error).__name__ if error is not None else "Stopped", "message": message}
        where = getattr(error, "location", None)
        if where is not None:
            frame = where.frame
            answer.error |= {"file": Path(frame.file).name, "line": frame.line}


def complain(message: str) -> None:
    """Print an error to the standard error, if it can be written. Very long words are shortened."""
    shown = re.sub(r"\S{300,}", lambda word: f"{word[0][:80]}…{word[0][-40:]}", message)
    with contextlib.suppress(OSError):
        typer.echo(f"tilewright: {shown}", err=True)


def refused(error: OSError) -> int:
    """Print an error of the system, and return the exit status."""
    if isinstance(error, BrokenPipeError):
        _discard_output()  # the reader closed the pipe, and needs no message
    else:
        where = f"{error.filename}: " if error.filename else ""
        complain(f"{where}{error.strerror or error}")
    return BAD_INPUT


def open_streams() -> bool:
    """Prepare the standard streams; prints the reason and returns false if the output would be lost."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        complain("the standard output is closed; nearest: > /dev/null")
        return False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # characters that the locale lacks are escaped
            stream.reconfigure(errors="backslashreplace")
    return True


def close_streams(status: int) -> int:
    """Flush the output, and return the exit status, which is `BAD_INPUT` if the output is lost."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _discard_output()
        if status != OK:
            return status
        if not isinstance(error, BrokenPipeError):
            complain(f"the standard output cannot be written: {error.strerror or error}")
        return BAD_INPUT
    return status


def _discard_output() -> None:
    """Discard buffered output."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(name: str, text: str) -> None:
    """Print one step and its outcome."""
    step(name, text)
    typer.echo(f"{name:<9} {text}")
    sys.stdout.flush()


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """Show a spinner on a terminal, and remove it afterwards."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    # At a low rate, which does not disturb timings.
    with Console(stderr=True).status(what, refresh_per_second=4):
        yield


def duration(seconds: float) -> str:
    """Format a time with a suitable unit.

    Example:
        >>> duration(0.0000042), duration(0.0123), duration(3.21)
        ('4.2 us', '12.3 ms', '3.21 s')
    """
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def size(count: float) -> str:
    """Format a number of bytes with a suitable unit.

    Example:
        >>> size(512), size(3 * 2**20)
        ('512 B', '3.0 MiB')
    """
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while count >= 1024 and len(units) > 1:
        count /= 1024
        units.pop(0)
    return f"{count:.0f} B" if units[0] == "B" else f"{count:.1f} {units[0]}"


# ---------------------------------------------------------------- shared options


TargetName = Annotated[str, typer.Option(help="Which target runs it: cpu, cuda, hip or reference.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the random numbers.")]
EveryElement = Annotated[
    bool, typer.Option(help="Compare every element with a reference, under a bound for each.")
]
Activation = Annotated[str | None, typer.Option(help=f"One of {', '.join(ACTIVATIONS)}.", show_default=False)]
ScheduleText = Annotated[
    str | None,
    typer.Option(metavar="EXPRESSION", help="The schedule: tw.Schedule(...).", show_default=False),
]
Constants = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=EXPRESSION",
        help="A constant of a kernel in a file, or a number that it takes, as Python; tw is tilewright. "
        "May be repeated.",
    ),
]
Element = Annotated[str, typer.Option(help="Element type, as in tilewright gemm.")]
OperandLayout = Annotated[str, typer.Option(help="How A and B lie in memory: nn, nt, tn or tt.")]
ExactOrTf32 = Annotated[str, typer.Option(help="How f32 is multiplied: exact or tf32.")]
MostCandidates = Annotated[
    int | None,
    typer.Option(min=1, help="How many candidates are measured. Default: all.", show_default=False),
]
Processes = Annotated[
    int | None,
    typer.Option(min=1, help="Processes that compile. Default: one for each processor.", show_default=False),
]


def choose_activation(given: str | None) -> None:
    """Check that an activation exists."""
    if given is not None:
        choose("activation", given, tuple(ACTIVATIONS))


def first_call(trial: FlowTrial) -> None:
    """Run a trial, and print the time of the first call."""
    with working("running"):
        seconds = trial.run()
    say("run", f"on {trial.target}: {duration(seconds)} for the first call")


def verified(compared: Callable[[], GemmComparison | StoredComparison]) -> None:
    """Compare a result, print the outcome, and end the verb if the result is wrong."""
    with working("verifying"):
        found = compared()
    found.raise_if_wrong()
    tell(verified=True)
    say("verify", str(found))


def timed(trial: FlowTrial) -> None:
    """Time a trial in turns with other libraries; print each time, then our ``Perf:`` line."""
    if not TARGETS[trial.target].machine_code:
        typer.echo(trial.perf(1e6 * trial.run()))
        return
    with working("timing"):
        taken = trial.time(QUICK)
    typer.echo(trial.perf(told(taken)))


def told(taken: Measurement) -> float:
    """Print the time of each call and the speed of ours relative to it; returns the microseconds of ours."""
    tell(times_us={one.name: one.us.median for one in taken.timings})
    for timing in taken.timings:
        speed = "" if timing.name == OURS else f"; {OURS} is {taken.speed(OURS, timing.name)} times as fast"
        say("time", f"{timing.name}: {duration(timing.us.median / 1e6)}{speed}")
    return taken[OURS].us.median


def perf(
    call: Callable[[], object], target: str, flops: float, moved: int, name: str, rivals: Callable[[], Calls]
) -> None:
    """Time a call in turns with other libraries; print each time, then our ``Perf:`` line.

    Args:
        call: our call.
        target: the target that runs it.
        flops: operations of one call.
        moved: bytes of its arrays, once each.
        name: its name in the line.
        rivals: makes the calls of other libraries, by name.
    """
    if TARGETS[target].machine_code:
        with working("timing"):
            taken = measure({OURS: call, **rivals()}, target, effort=QUICK)
        us = told(taken)
    else:  # the reference executes operation by operation; its time says nothing about a machine
        begun = time.perf_counter()
        call()
        us = 1e6 * (time.perf_counter() - begun)
    tell(us=us, tflops=flops / us / 1e6, gbytes=moved / us / 1e3, name=name)
    typer.echo(perf_line(us, flops, moved, name))


def by(extents: Sequence[int]) -> str:
    """Return extents with x between them."""
    return "x".join(map(str, extents))
