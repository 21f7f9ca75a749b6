"""The statement tree of generated C, the passes that tidy it, and its printer.

Expressions are texts that know which names they use (`Code`); statements are nodes.  Rules make nodes through
an emitter, `tidy` rewrites them, and the printer writes them.  Nothing parses the text again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

COLUMNS = 100
"""Maximum columns of a line of text."""


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
class BaseStatement:
    """The fields of every statement.

    Args:
        about: what it was written for, an operation; no part of its text.
    """

    about: Any = field(default=None, compare=False, repr=False, kw_only=True)


@dataclass
class Comment(BaseStatement):
    """``// text``."""

    text: str


@dataclass
class Raw(BaseStatement):
    """A line as it is, for what no other statement says: a directive, a declaration of the dialect's own."""

    text: Code


@dataclass
class Do(BaseStatement):
    """An expression for what it does: ``call(...);``."""

    what: Code


@dataclass
class Declare(BaseStatement):
    """``kind name = value;``.

    Args:
        kind: its type, and what qualifies it.
        name: a name that the text has not used.
        value: its initial value; None for an array or a variable written later.
        extent: how many elements an array has; None for a single value.
        optional: whether it may go where nothing names it.
        comment: put after it.
    """

    kind: Code
    name: Code
    value: Code | None = None
    extent: int | None = None
    optional: bool = False
    comment: str = ""


@dataclass
class Assign(BaseStatement):
    """``target = value;``, or with another operator, such as ``+=``."""

    target: Code
    value: Code
    operator: str = "="


@dataclass
class ForLoop(BaseStatement):
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
class Branch(BaseStatement):
    """``if (condition) body else if (condition) body else body``."""

    arms: list[Arm]


@dataclass
class InnerScope(BaseStatement):
    """``{ body }``, for names that nothing after it sees."""

    body: Body


Statement: TypeAlias = Comment | Raw | Do | Declare | Assign | ForLoop | Branch | InnerScope
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
    if isinstance(node, ForLoop | InnerScope):
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
        case ForLoop():
            return names_in([node.kind, node.start, node.condition, node.step]) - {str(node.index)}
        case Branch():
            return names_in([arm.condition for arm in node.arms])
        case Comment() | InnerScope():
            return frozenset()


def used(body: Body) -> set[str]:
    """The names that some statements use, with all that is in them, and do not declare themselves."""
    found: set[str] = set()
    for node in reversed(body):
        if isinstance(node, Declare):
            found.discard(node.name)
        for inner in bodies(node):
            found |= used(inner) - ({str(node.index)} if isinstance(node, ForLoop) else set())
        found |= own_names(node)
    return found


def declared(body: Body) -> set[str]:
    """The names that some statements declare, not those in their bodies."""
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
            case InnerScope():
                self._braces("", node.body, depth)
            case ForLoop():
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


def _loop_head(node: ForLoop) -> str:
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


# ---------------------------------------------------------------- tidying
#
# Each pass takes the statements of one body and returns others.  `tidy` applies all of them, innermost
# bodies first.


def drop_unused_declarations(body: Body) -> Body:
    """Without optional declarations that nothing after them names."""
    kept: Body = []
    names: set[str] = set()
    for node in reversed(body):
        if isinstance(node, Declare) and node.optional and node.name not in names:
            continue
        names |= used([node])
        kept.append(node)
    return kept[::-1]


def drop_empty_branches(body: Body) -> Body:
    """Without loops, scopes and branches in which nothing is done, comments aside."""
    return [kept for node in body if (kept := _not_empty(node)) is not None]


def _not_empty(node: Statement) -> Statement | None:
    match node:
        case Branch():
            kept = list(node.arms)
            while kept and _does_nothing(kept[-1].body):
                kept.pop()
            return replace(node, arms=kept) if kept else None
        case ForLoop() | InnerScope():
            return None if _does_nothing(node.body) else node
        case _:
            return node


def _does_nothing(body: Body) -> bool:
    return all(isinstance(node, Comment) for node in body)


def join_equal_arms(body: Body) -> Body:
    """With one arm where neighbouring arms of a branch do the same."""
    return [replace(node, arms=_joined(node.arms)) if isinstance(node, Branch) else node for node in body]


def _joined(arms: list[Arm]) -> list[Arm]:
    found = arms[:1]
    for arm in arms[1:]:
        last = found[-1]
        if arm.body == last.body and last.condition is not None and arm.condition is not None:
            either = joined(" || ", (code("({})", each) for each in (last.condition, arm.condition)))
            found[-1] = replace(last, condition=either)
        else:
            found.append(arm)
    return found


def merge_adjacent_branches(body: Body, steady: Collection[str]) -> Body:
    """With one branch where neighbours ask the same of names that no statement changes.

    Comments between two branches are those of the second: they go into it.  Branches that declare the same
    names stay two.

    Args:
        body: the statements.
        steady: the names that nothing writes after they are declared.
    """
    found: Body = []
    for node in body:
        last = len(found) - 1
        while last >= 0 and isinstance(found[last], Comment):
            last -= 1
        before = found[last] if last >= 0 else None
        if _asks_alike(before, node, steady):
            assert isinstance(before, Branch)
            assert isinstance(node, Branch)
            [first], [second] = before.arms, node.arms
            both = replace(first, body=[*first.body, *found[last + 1 :], *second.body])
            found[last:] = [replace(before, arms=[both])]
        else:
            found.append(node)
    return found


def _asks_alike(before: Statement | None, node: Statement, steady: Collection[str]) -> bool:
    if not isinstance(before, Branch) or not isinstance(node, Branch):
        return False
    if len(before.arms) > 1 or len(node.arms) > 1:
        return False
    [first], [second] = before.arms, node.arms
    if first.condition is None or first.condition != second.condition:
        return False
    meeting = declared(first.body) & (used(second.body) | declared(second.body))
    return first.condition.names <= set(steady) and not meeting


def tidy(body: Body, steady: Collection[str]) -> Body:
    """A body after all passes, and all that is in it.

    Args:
        body: the statements.
        steady: the names that nothing writes after they are declared.
    """
    inside = [_tidied_inside(node, steady) for node in body]
    made = merge_adjacent_branches(join_equal_arms(drop_empty_branches(inside)), steady)
    return drop_unused_declarations(made)


def _tidied_inside(node: Statement, steady: Collection[str]) -> Statement:
    match node:
        case Branch():
            return replace(node, arms=[replace(arm, body=tidy(arm.body, steady)) for arm in node.arms])
        case ForLoop() | InnerScope():
            return replace(node, body=tidy(node.body, steady))
        case _:
            return node
