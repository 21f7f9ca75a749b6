"""The tree of statements that generated C is printed from, and the printer.

Expressions are texts that know which names they use (`Code`); statements are nodes.  Rules make nodes through
an emitter, passes (`targets/tidy.py`) mend them, the printer writes them: nobody reads text back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

COLUMNS = 100
"""Where lines of text are broken."""


class Code(str):
    """A piece of C that knows which names it uses: variables, types and functions, no words of the language.

    Example:
        >>> at = code("{} + {}", named("from"), 8)
        >>> at, sorted(at.names)
        ('from + 8', ['from'])
    """

    names: frozenset[str]

    def __new__(cls, text: str = "", names: Iterable[str] = ()) -> Code:
        """The text, with its names."""
        made = super().__new__(cls, text)
        made.names = frozenset(names)
        return made


def named(name: str) -> Code:
    """A name by itself."""
    return Code(name, (name,))


def code(template: str, *parts: Code | int) -> Code:
    """A template of C's own words and signs, as `str.format` takes it, filled with pieces.

    Example:
        >>> code("{}[{}]", named("a"), named("i"))
        'a[i]'
    """
    return Code(template.format(*parts), names_in(parts))


def joined(separator: str, parts: Iterable[Code | int]) -> Code:
    """Pieces with a separator between them."""
    known = tuple(parts)
    return Code(separator.join(map(str, known)), names_in(known))


def call(function: str, *arguments: Code | int, of: Iterable[Code | int] = ()) -> Code:
    """A call of a function that the text defines, or that its prelude does.

    Args:
        function: its name.
        arguments: what it gets.
        of: its template arguments.

    Example:
        >>> call("load_if", named("inside"), named("from"), of=[named("uint4")])
        'load_if<uint4>(inside, from)'
    """
    kinds = joined(", ", of)
    return code(f"{{}}{'<{}>' if kinds else '{}'}({{}})", named(function), kinds, joined(", ", arguments))


def names_in(parts: Iterable[object]) -> frozenset[str]:
    """The names that pieces use."""
    found: set[str] = set()
    for part in parts:
        if isinstance(part, Code):
            found |= part.names
    return frozenset(found)


@dataclass
class Node:
    """What every statement has.

    Args:
        about: what it was written for, an operation; no part of its text.
    """

    about: Any = field(default=None, compare=False, repr=False, kw_only=True)


@dataclass
class Comment(Node):
    """``// text``."""

    text: str


@dataclass
class Raw(Node):
    """A line as it is, for what no other statement says: a directive, a declaration of the dialect's own."""

    text: Code


@dataclass
class Do(Node):
    """An expression for what it does: ``call(...);``."""

    what: Code


@dataclass
class Declare(Node):
    """``kind name = value;``.

    Args:
        kind: its type, and what qualifies it.
        name: a name that the text has not used.
        value: what it begins with; None for an array or what is written later.
        extent: how many elements an array has; None for a single value.
        optional: whether it may go where nothing names it.
        comment: said behind it.
    """

    kind: Code
    name: Code
    value: Code | None = None
    extent: int | None = None
    optional: bool = False
    comment: str = ""


@dataclass
class Assign(Node):
    """``target = value;``, or with another operator, such as ``+=``."""

    target: Code
    value: Code
    operator: str = "="


@dataclass
class Loop(Node):
    """``for (kind index = start; condition; index += step) body``.

    Args:
        kind: the index' type.
        index: its name.
        start: its first value.
        condition: holds in every turn.
        step: by what it grows.
        body: what every turn does.
        before: a line above the loop that says what the compiler should do with it; empty for none.
    """

    kind: Code
    index: Code
    start: Code
    condition: Code
    step: Code
    body: Body
    before: str = ""


@dataclass
class Arm:
    """One way that a branch may take.

    Args:
        condition: when it is taken, if none before it was; None for otherwise.
        body: what is done.
        comment: said above it.
    """

    condition: Code | None
    body: Body
    comment: str = ""


@dataclass
class Branch(Node):
    """``if (condition) body else if (condition) body else body``."""

    arms: list[Arm]


@dataclass
class Scope(Node):
    """``{ body }``, for names that nothing after it sees."""

    body: Body


Statement: TypeAlias = Comment | Raw | Do | Declare | Assign | Loop | Branch | Scope
Body: TypeAlias = list["Statement"]
SIMPLE = (Raw, Do, Declare, Assign)
"""Statements of one line."""


def write_about(body: Body, about: object) -> None:
    """Note of statements what they were written for, and of all in them, where nothing is noted yet."""
    for node in body:
        if node.about is None:
            node.about = about
            for inner in bodies(node):
                write_about(inner, about)


def bodies(node: Statement) -> Iterator[Body]:
    """The bodies inside a statement."""
    if isinstance(node, Loop | Scope):
        yield node.body
    elif isinstance(node, Branch):
        for arm in node.arms:
            yield arm.body


def own_names(node: Statement) -> frozenset[str]:
    """The names that a statement uses itself, without those that its bodies use."""
    match node:
        case Raw():
            return node.text.names
        case Do():
            return node.what.names
        case Declare():
            return names_in([node.kind, node.value])
        case Assign():
            return names_in([node.target, node.value])
        case Loop():
            return names_in([node.kind, node.start, node.condition, node.step]) - {str(node.index)}
        case Branch():
            return names_in([arm.condition for arm in node.arms])
        case Comment() | Scope():
            return frozenset()


def used(body: Body) -> set[str]:
    """The names that some statements use, with all that is in them, and do not declare themselves."""
    found: set[str] = set()
    for node in reversed(body):
        if isinstance(node, Declare):
            found.discard(node.name)
        for inner in bodies(node):
            found |= used(inner) - ({str(node.index)} if isinstance(node, Loop) else set())
        found |= own_names(node)
    return found


def declared(body: Body) -> set[str]:
    """The names that some statements declare, but not what is in them."""
    return {str(node.name) for node in body if isinstance(node, Declare)}


@dataclass
class Printer:
    """Writes statements as lines of text.

    Args:
        columns: where long lines are broken.
        lines: what was written.
        about: for each line, by its place among them, what it was written for.
    """

    columns: int = COLUMNS
    lines: list[str] = field(default_factory=list)
    about: dict[int, Any] = field(default_factory=dict)

    def print(self, body: Body, depth: int = 1) -> list[str]:
        """The lines of some statements, indented by ``depth`` steps."""
        for node in body:
            first = len(self.lines)
            self._statement(node, depth)
            if node.about is not None:
                for at in range(first, len(self.lines)):
                    self.about.setdefault(at, node.about)
        return self.lines

    def _statement(self, node: Statement, depth: int) -> None:
        match node:
            case Comment():
                self._line(f"// {node.text}", depth)
            case Scope():
                self._braces("", node.body, depth)
            case Loop():
                if node.before:
                    self._line(node.before, depth)
                self._compound(_loop_head(node), node.body, depth)
            case Branch():
                self._branch(node, depth)
            case Declare() if node.comment and len(simple_text(node)) > self.columns - 2 * depth:
                # Behind a line that is broken it would be broken too.
                self._line(f"// {node.comment}", depth)
                self._line(simple_text(replace(node, comment="")), depth)
            case Raw() | Do() | Declare() | Assign():
                self._line(simple_text(node), depth)

    def _branch(self, node: Branch, depth: int) -> None:
        if len(node.arms) == 1 and not node.arms[0].comment:
            self._compound(f"if ({node.arms[0].condition})", node.arms[0].body, depth)
            return
        for number, arm in enumerate(node.arms):
            if arm.comment:
                self._line(f"// {arm.comment}", depth)
            head = "else" if number else ""
            if arm.condition is not None:
                head += f"{' ' * bool(head)}if ({arm.condition})"
            self._braces(f"{head} ", arm.body, depth)

    def _compound(self, head: str, body: Body, depth: int) -> None:
        """A head with one simple statement on its line, if it fits there, or with statements in braces."""
        if len(body) == 1 and isinstance(only := body[0], SIMPLE):
            text = f"{head} {simple_text(only)}"
            if len(text) + 2 * depth <= self.columns and not isinstance(only, Declare):
                self._line(text, depth)
                return
        self._braces(f"{head} ", body, depth)

    def _braces(self, head: str, body: Body, depth: int) -> None:
        self._line(head + "{", depth)
        self.print(body, depth + 1)
        self._line("}", depth)

    def _line(self, text: str, depth: int) -> None:
        room = self.columns - 2 * depth
        first, rest = _cut(text, room)
        self.lines.append("  " * depth + first if first else "")
        while rest:
            piece, rest = _cut(rest, room - 4)
            self.lines.append("  " * depth + f"    {piece}")


def simple_text(node: Raw | Do | Declare | Assign) -> str:
    """A statement of one line."""
    match node:
        case Raw():
            return node.text
        case Do():
            return f"{node.what};"
        case Declare():
            text = f"{node.kind} {node.name}" + ("" if node.extent is None else f"[{node.extent}]")
            text += ";" if node.value is None else f" = {node.value};"
            return f"{text}  // {node.comment}" if node.comment else text
        case Assign():
            return f"{node.target} {node.operator} {node.value};"


def _loop_head(node: Loop) -> str:
    grow = f"++{node.index}" if node.step == "1" else f"{node.index} += {node.step}"
    return f"for ({node.kind} {node.index} = {node.start}; {node.condition}; {grow})"


def _cut(text: str, room: int) -> tuple[str, str]:
    """Cut a text where the fewest parentheses are open, as far right as there is room."""
    if len(text) <= room or text.startswith(("//", "#")):
        return text, ""
    depth = 0
    cuts: list[tuple[int, int]] = []
    for at, letter in enumerate(text[:room]):
        depth += (letter in "([") - (letter in ")]")
        before, after = text[:at], text[at:]
        if letter == " " and (before.endswith((" =", ",")) or after.startswith((" && ", " + ", " ^ "))):
            cuts.append((depth, at))
    if not cuts:
        return text, ""
    least = min(depth for depth, _ in cuts)
    at = max(at for depth, at in cuts if depth == least)
    return text[:at], text[at + 1 :]
