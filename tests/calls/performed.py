"""Wrong calls, made from legal ones, are run and judged: a result, or an error that a user can read."""

from __future__ import annotations

import ast
import copy
import inspect
import linecache
import re
import resource
import signal
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from random import Random
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from tests.calls.devices import DEVICES
from tests.calls.flows import FLOWS, RECORDED
from tests.calls.legal import INSIDE, OUTSIDE
from tests.calls.values import TRACED, VALUES

import tilewright as tw
from tilewright.argument_checks import is_sequence
from tilewright.calls import is_ours
from tilewright.errors import TilewrightError, shown
from tilewright.ir import verify
from tilewright.layout.tuples import canonical, format_tuple
from tilewright.symbolic.nodes import Sym
from tilewright.views import transforms

SECONDS = 3.0
"""Processor time that one call may take; nearly all take less than a hundredth of it."""

MEMORY = 3 << 30
"""Bytes beyond those of the process that a call may take: so that one that would take all is found."""


VALUED = (ast.Constant, ast.Name, ast.GeneratorExp, ast.Attribute, ast.UnaryOp, ast.BinOp, ast.Tuple)
"""Parts of a call that have a value by themselves, which messages may show."""


Place: TypeAlias = Literal["outside", "in a kernel", "a dataflow kernel"]

PLACES: dict[Place, tuple[list[str], list[str]]] = {
    "outside": (OUTSIDE, []),
    "in a kernel": (INSIDE, TRACED),
    "a dataflow kernel": (FLOWS, RECORDED),
}
"""For each place the right calls, and what is there besides `VALUES` to replace arguments."""


class TooSlowError(BaseException):
    """A call took longer than `SECONDS`."""


class Strange:
    """An object whose own methods fail."""

    def __repr__(self) -> str:
        raise RuntimeError("repr of a stranger")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq of a stranger")

    def __hash__(self) -> int:
        raise RuntimeError("hash of a stranger")


class Liar:
    """An object that claims to be on a GPU, in words without meaning."""

    @property
    def __cuda_array_interface__(self) -> object:
        return {"shape": "ab", "typestr": 3, "data": None, "version": "x"}


@tw.kernel(X="M N", alpha=tw.f32)
def scale(X, alpha, *, tile):
    part = X.tile((tile, tile), tw.block_index(tw.ceil_div(X.shape, (tile, tile)))).partition((8, 4))
    tw.copy(tw.load(part) * alpha, part)


def function(X, alpha=None):
    """A kernel that does nothing."""


@tw.kernel(A="M K", B="N K", C="M N", alpha=tw.f32)
def linear(A, B, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = alpha * acc


def nest(depth: int) -> Any:
    made: Any = 4
    for _ in range(depth):
        made = (made,)
    return made


MMA = tw.TiledMma(tw.atoms.MMA_F16, (2, 2), (1, 2))
ARRAYS = {name: np.arange(64, dtype=np.float32).reshape(8, 8) for name in ("a", "b")}
SCHEDULE = tw.Schedule(tw.atoms.fma("f32"), (8, 8, 8))
SPECS = (tw.TensorSpec("f32", 2, 1, (32, 32), (16, 1), 16, False), 2.0)
NAMES: dict[str, Any] = {
    **ARRAYS,
    **DEVICES,
    "tw": tw,
    "np": np,
    "transforms": transforms,
    "w": np.ones((8, 8), np.float32),
    "count": np.zeros(1, np.uint32),
    "out": np.zeros((8, 8), np.float32),
    "stack": np.ones((2, 8, 8), np.float32),
    "ends": np.array([3, 8], np.int32),
    "given": [4, 8],
    "long": "x" * 5000,
    "table": {"tile": 4},
    "nested": nest(3000),
    "strange": Strange(),
    "liar": Liar(),
    "function": function,
    "rows": tw.Distribution((4, 8), (tw.Mode(4, 0, 1),), (tw.Mode(8, 1, 1),)),
    "columns": tw.blocked((32, 4), (32, 1), (0, 1)),
    "view": tw.View.strided((4, 8), (8, 1)),
    "image": tw.View.strided((2, 9, 9, 8), (648, 72, 8, 1)),
    "symbolic": tw.Layout((Sym("n", 1, 64), 4)),
    "mma": MMA,
    "scale": scale,
    "bound": scale.bind(tile=32),
    "prepared": scale.bind(tile=32).prepare(np.ones((8, 8), np.float32), 2.0, target="reference"),
    "linear": linear,
    "wgmma": tw.atoms.wgmma("bf16", 256),
    "schedule": SCHEDULE,
    "flow": linear.flow(*[tw.like("f32", 8, 8)] * 3, 2.0),
    "traced": scale.trace(*SPECS, tile=32),
}
NAMES["text"] = tw.ir.print_kernel(NAMES["traced"])
NAMES["flowing"] = tw.ir.print_flow(NAMES["flow"])
UNCHANGED = ("a", "b", "given", "table")
for kept in ARRAYS.values():
    kept.setflags(write=False)
BEFORE = {name: copy.deepcopy(NAMES[name]) for name in UNCHANGED}


class Call(NamedTuple):
    """A call, as text, and its place; a dataflow kernel is one call."""

    text: str
    place: Place = "outside"

    def __str__(self) -> str:
        return self.text + ("" if self.place == "outside" else f"  # {self.place}")


class Failure(NamedTuple):
    """A wrong outcome of a call, and the origin of the call."""

    what: str
    where: str
    call: Call
    report: str = ""


# ---------------------------------------------------------------- making calls


def drawn(rng: Random) -> Call:
    """Return a call with one to three arguments replaced, left out, or given twice."""
    place = rng.choices(list(PLACES), (5, 5, 2))[0]
    right, present = PLACES[place]
    tree = ast.parse(rng.choice(right).replace("\\n", "\n"))
    pool = VALUES + 3 * present
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call | ast.BinOp | ast.Subscript)]
        if calls:
            _damage(rng, rng.choice(calls), pool)
    return Call(ast.unparse(ast.fix_missing_locations(tree)), place)


def _damage(rng: Random, node: ast.Call | ast.BinOp | ast.Subscript, pool: list[str]) -> None:
    value = ast.parse(rng.choice(pool), mode="eval").body
    match node:
        case ast.BinOp():
            if rng.random() < 0.5:
                node.left = value
            else:
                node.right = value
        case ast.Subscript():
            node.slice = value
        case ast.Call():
            _damage_call(rng, node, value)


def _damage_call(rng: Random, node: ast.Call, value: ast.expr) -> None:
    slots: list[Any] = [*range(len(node.args)), *node.keywords]
    how = rng.random()
    if not slots or how < 0.05:
        node.args.append(value)
        return
    slot = rng.choice(slots)
    if how < 0.1:
        (node.args.pop(slot) if isinstance(slot, int) else node.keywords.remove(slot))
    elif isinstance(slot, ast.keyword):
        if how < 0.15:
            slot.arg = f"{slot.arg}s"
        slot.value = _inner(rng, slot.value, value)
    else:
        node.args[slot] = _inner(rng, node.args[slot], value)


def _inner(rng: Random, old: ast.expr, value: ast.expr) -> ast.expr:
    """Return the value, or a tuple with the value in place of one entry."""
    if isinstance(old, ast.Tuple) and old.elts and rng.random() < 0.5:
        entries = list(old.elts)
        entries[rng.randrange(len(entries))] = value
        return ast.Tuple(entries, ast.Load())
    return value


# ---------------------------------------------------------------- carrying them out


def failure_of(call: Call) -> Failure | None:
    """Make a call; return an error text if its outcome is wrong, or None."""
    try:
        with limited():
            perform(call)
        found = None
    except (TilewrightError, TooSlowError) as error:
        found = _judged(call, error)
    except Exception as error:  # noqa: BLE001 which of them are failures is what is asked here
        found = _judged(call, error)
    changed = [name for name in UNCHANGED if not np.array_equal(NAMES[name], BEFORE[name])]
    if found is None and changed:
        NAMES.update(copy.deepcopy(BEFORE))
        return Failure(f"it changed {', '.join(changed)}", call.text.partition("(")[0], call)
    return found


def perform(call: Call) -> None:
    """Run a call."""
    {"outside": _outside, "in a kernel": _inside, "a dataflow kernel": _recorded}[call.place](call)


def _outside(call: Call) -> None:
    exec(compiled(call.text), dict(NAMES))


def compiled(text: str) -> CodeType:
    """Return the code of a call, with lines that tracebacks can show."""
    linecache.cache["<call>"] = (len(text), None, text.splitlines(keepends=True), "<call>")
    return compile(text, "<call>", "exec")


@tw.kernel(X="M N", n=int, alpha=tw.f32)
def around(X, n, alpha, *, code):
    names = dict(NAMES)
    names |= {
        "X": X,
        "n": n,
        "alpha": alpha,
        "m": tw.block_index(tw.ceil_div(X.shape[0], 32)),
        "S": tw.shared((32, 32), "f32"),
        "T": tw.shared((32, 32), "f32", swizzle=128),
        "I": tw.shared((32,), "i32"),
        "A": tw.shared((32, 16), "f16"),
        "B": tw.shared((32, 16), "f16"),
        "f": tw.fragment(tw.blocked((32, 32), (8, 4)), "f32", 0.0),
        "h": tw.fragment(tw.blocked((32, 32), (4, 8)), "i32", 0),
        "acc": tw.accumulator(MMA),
        "full": tw.hopper.mbarrier(2, 1),
        "v0": tw.var(0),
    }
    exec(code, names)


def _inside(call: Call) -> None:
    code = compiled(call.text)
    # Each call is traced anew: constants are not kept.
    kernel = around.program.trace({"X": SPECS[0]}, {"code": code})
    verify.violations(kernel)
    tw.ir.print_kernel(kernel)


@tw.kernel(A="N N", B="N N", C="N N", u="N", v="N", ends="G", ready="N", alpha=tw.f32, n0=int)
def recorded(A, B, C, u, v, ends, ready, alpha, n0, *, code):
    names = {"A": A, "B": B, "C": C, "u": u, "v": v, "alpha": alpha, "n0": n0, "K": A.shape[1]}
    names |= {"groups": ends, "ready": ready}
    exec(code, NAMES | names)


VECTOR = tw.TensorSpec("f32", 1, 0, (32,), (1,), 16, False)
SQUARE = dict.fromkeys("ABC", SPECS[0]) | dict.fromkeys("uv", VECTOR)
SQUARE["ends"] = tw.TensorSpec("i32", 1, 0, (32,), (1,), 16, False)
SQUARE["ready"] = tw.TensorSpec("u32", 1, 0, (4,), (1,), 16, False)


def _recorded(call: Call) -> None:
    code = compiled(call.text)
    flow = recorded.program.run(SQUARE, {"code": code})
    if isinstance(flow, tw.ir.Flow):
        assert tw.ir.print_flow(tw.ir.parse_flow(tw.ir.print_flow(flow))) == tw.ir.print_flow(flow)


@contextmanager
def limited(seconds: float | None = None) -> Iterator[None]:
    """Limit processor time and memory inside of the with block."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TooSlowError

    before = signal.signal(signal.SIGPROF, stop)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_taken() + MEMORY, hard))
    signal.setitimer(signal.ITIMER_PROF, SECONDS if seconds is None else seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGPROF, before)


def _taken() -> int:
    """Return the bytes of address space of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


# ---------------------------------------------------------------- judging


def _judged(call: Call, error: BaseException) -> Failure | None:
    frames = list(traceback.walk_tb(getattr(error, "full_traceback", None) or error.__traceback__))
    ours = [(frame, line) for frame, line in frames if is_ours(frame)]
    kind = type(error).__name__
    where = f"{ours[-1][0].f_code.co_filename.rpartition('tilewright/')[2]}:{ours[-1][1]}" if ours else "-"
    report = "".join(traceback.format_exception(error)[-6:])
    if isinstance(error, TooSlowError):
        return Failure(f"takes more than {SECONDS:g} s", where, call, report)
    if not isinstance(error, TilewrightError):
        # Python's own refusals, and what a stranger's methods raise, are no business of the package.
        foreign = not ours or not _beneath(frames) or _has_none(error, frames)
        foreign |= "of a stranger" in str(error)
        return None if foreign else Failure(f"raises {kind}", where, call, report)
    if not _names_something(str(error), call.text):
        return Failure(f"{kind} names nothing of the call: {error}"[:300], where, call, report)
    return None


def _has_none(error: BaseException, frames: list[tuple[FrameType, int]]) -> bool:
    """Return whether the call itself asked for a missing attribute: Python's own error is legal then."""
    asked = frames[-2][0].f_code.co_filename, frames[-1][0].f_code.co_name
    return isinstance(error, AttributeError) and asked == ("<call>", "__getattr__")


def _beneath(frames: list[tuple[FrameType, int]]) -> bool:
    """Return whether the error was raised in the package, below the frame of the call itself."""
    at = max((i for i, (frame, _) in enumerate(frames) if frame.f_code.co_filename == "<call>"), default=-1)
    return any(is_ours(frame) for frame, _ in frames[at + 1 :])


def _names_something(message: str, text: str) -> bool:
    """Return whether a message shows the call's line, or a word, number or value of the call."""
    if "at <call>:1:" in message:
        return True
    words = {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
    words |= {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)} - {"tw", "np"}
    words |= {node.arg for node in ast.walk(ast.parse(text)) if isinstance(node, ast.keyword) and node.arg}
    words |= {part for word in words for part in word.lower().split("_") if len(part) > 2}
    words |= set(_values(text)) | ({"scale", "alpha"} if words & {"bound", "linear", "prepared"} else set())
    spelled = [word for word in words if len(word) > 1 or word.isdigit()]
    if any(word.lower() in message.lower() for word in spelled):
        return True
    return any(re.search(rf"\b{word}\b", message) for word in words if word.isidentifier())


def _values(text: str) -> Iterator[str]:
    """Yield the values of the call as messages show them, and their types."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            with suppress(Exception):
                yield from inspect.signature(_value(node.func)).parameters
        if isinstance(node, VALUED):
            try:
                value = _value(node)
                yield type(value).__name__
                yield shown(value)
                yield str(value)[:80]
                yield format_tuple(canonical(value)) if is_sequence(value) else ""
            except Exception:  # noqa: BLE001 a name of the kernel, or what has no value or text
                continue


def _value(node: ast.expr) -> Any:
    expression = ast.fix_missing_locations(ast.parse(ast.unparse(node), mode="eval"))
    return eval(compile(expression, "<value>", "eval"), dict(NAMES))
