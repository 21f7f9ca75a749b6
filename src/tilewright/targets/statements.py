"""The statement tree of generated C, the passes that tidy it, and its printer.

Expressions are text with the set of names that they use (`Code`); statements are nodes.  Rules make nodes
through an emitter, `tidy` rewrites them, and the printer writes them.  The text is never parsed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

COLUMNS = 100
"""Maximum columns of a line of text."""


class Code(str):
    """A piece of C with the names that it uses: variables, types and functions, but not keywords.

    Example:
        >>> at = code("{} + {}", named("from"), 8)
        >>> at, sorted(at.names)
        ('from + 8', ['from'])
    """

    names: frozenset[str]

    def __new__(cls, text: str = "", names: Iterable[str] = ()) -> Code:
        """Make a text that knows its names."""
        made = super().__new__(cls, text)
        made.names = frozenset(names)
        return made


def named(name: str) -> Code:
    """Return a name as a piece of C."""
    return Code(name, (name,))


def code(template: str, *parts: Code | int) -> Code:
    """Return a template of C's keywords and signs, as for `str.format`, filled with pieces.

    Example:
        >>> code("{}[{}]", named("a"), named("i"))
        'a[i]'
    """
    return Code(template.format(*parts), names_in(parts))


def joined(separator: str, parts: Iterable[Code | int]) -> Code:
    """Return pieces with a separator between them."""
    known = tuple(parts)
    return Code(separator.join(map(str, known)), names_in(known))


def call(function: str, *arguments: Code | int, of: Iterable[Code | int] = ()) -> Code:
    """Return a call of a function of the text or its prelude.

    Args:
        function: the function's name.
        arguments: the arguments.
        of: the template arguments.

    Example:
        >>> call("load_if", named("inside"), named("from"), of=[named("uint4")])
        'load_if<uint4>(inside, from)'
    """
    kinds = joined(", ", of)
    return code(f"{{}}{'<{}>' if kinds else '{}'}({{}})", named(function), kinds, joined(", ", arguments))


def names_in(parts: Iterable[object]) -> frozenset[str]:
    """Return the names that pieces use."""
    found: set[str] = set()
    for part in parts:
        if isinstance(part, Code):
            found |= part.names
    return frozenset(found)


@dataclass
class BaseStatement:
    """The fields of every statement.

    Args:
        about: the operation that it was written for; not part of the text.
    """

    about: Any = field(default=None, compare=False, repr=False, kw_only=True)


@dataclass
class Comment(BaseStatement):
    """``// text``."""

    text: str


@dataclass
class Raw(BaseStatement):
    """A verbatim line, if no other statement fits: a directive, or a declaration of the dialect."""

    text: Code


@dataclass
class Do(BaseStatement):
    """An expression statement: ``call(...);``."""

    what: Code


@dataclass
class Declare(BaseStatement):
    """``kind name = value;``.

    Args:
        kind: the type, with its qualifiers.
        name: a name that the text has not used.
        value: the initial value; None for an array or a variable that is written later.
        extent: elements of an array; None for a single value.
        optional: whether it is dropped when nothing uses the name.
        comment: a comment after it.
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
        kind: the type of the index.
        index: the name of the index.
        start: the first value.
        condition: the condition of an iteration.
        step: the increment.
        body: the body.
        before: a line before the loop with a directive to the compiler; empty for none.
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
    """One arm of a branch.

    Args:
        condition: the condition, if no earlier arm was taken; None for ``else``.
        body: the body.
        comment: a comment before it.
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
    """``{ body }``, a scope for local names."""

    body: Body


Statement: TypeAlias = Comment | Raw | Do | Declare | Assign | ForLoop | Branch | InnerScope
Body: TypeAlias = list["Statement"]
SIMPLE = (Raw, Do, Declare, Assign)
"""Statements of one line."""


def write_about(body: Body, about: object) -> None:
    """Set ``about`` of statements and of all statements inside them, if it is not set yet."""
    for node in body:
        if node.about is None:
            node.about = about
            for inner in bodies(node):
                write_about(inner, about)


def bodies(node: Statement) -> Iterator[Body]:
    """Yield the bodies inside a statement."""
    if isinstance(node, ForLoop | InnerScope):
        yield node.body
    elif isinstance(node, Branch):
        for arm in node.arms:
            yield arm.body


def own_names(node: Statement) -> frozenset[str]:
    """Return the names that a statement uses itself, without those that its bodies use."""
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
    """Return the names that statements and their bodies use, but do not declare themselves."""
    found: set[str] = set()
    for node in reversed(body):
        if isinstance(node, Declare):
            found.discard(node.name)
        for inner in bodies(node):
            found |= used(inner) - ({str(node.index)} if isinstance(node, ForLoop) else set())
        found |= own_names(node)
    return found


def declared(body: Body) -> set[str]:
    """Return the names that statements declare, without those in their bodies."""
    return {str(node.name) for node in body if isinstance(node, Declare)}


@dataclass
class Printer:
    """Writes statements as lines of text.

    Args:
        columns: the maximum length of a line.
        lines: the written lines.
        about: by index of a line, the operation that it was written for.
    """

    columns: int = COLUMNS
    lines: list[str] = field(default_factory=list)
    about: dict[int, Any] = field(default_factory=dict)

    def print(self, body: Body, depth: int = 1) -> list[str]:
        """Write statements, indented by ``depth`` steps; return all lines."""
        for node in body:
            first = len(self.lines)
            match node:
                case Comment():
                    self._line(f"// {node.text}", depth)
                case InnerScope():
                    self._braces("", node.body, depth)
                case ForLoop():
                    if node.before:
                        self._line(node.before, depth)
                    index = node.index
                    grow = f"++{index}" if node.step == "1" else f"{index} += {node.step}"
                    head = f"for ({node.kind} {index} = {node.start}; {node.condition}; {grow})"
                    self._compound(head, node.body, depth)
                case Branch(arms=[arm]) if not arm.comment:
                    self._compound(f"if ({arm.condition})", arm.body, depth)
                case Branch():
                    for number, arm in enumerate(node.arms):
                        if arm.comment:
                            self._line(f"// {arm.comment}", depth)
                        head = "else" if number else ""
                        if arm.condition is not None:
                            head += f"{' ' * bool(head)}if ({arm.condition})"
                        self._braces(f"{head} ", arm.body, depth)
                case Declare() if node.comment and len(simple_text(node)) > self.columns - 2 * depth:
                    # The line is broken, and a comment after it would be broken, too.
                    self._line(f"// {node.comment}", depth)
                    self._line(simple_text(replace(node, comment="")), depth)
                case Raw() | Do() | Declare() | Assign():
                    self._line(simple_text(node), depth)
            if node.about is not None:
                for at in range(first, len(self.lines)):
                    self.about.setdefault(at, node.about)
        return self.lines

    def _compound(self, head: str, body: Body, depth: int) -> None:
        """Write a head with one simple statement on the same line if it fits, else with a body in braces."""
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
    """Return the text of a statement of one line."""
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


def _cut(text: str, room: int) -> tuple[str, str]:
    """Cut a text at the last place that fits and has the fewest open parentheses."""
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
# Each pass maps the statements of one body to others.  `tidy` applies all passes, innermost bodies first.


def drop_unused_declarations(body: Body) -> Body:
    """Drop optional declarations whose names nothing after them uses."""
    kept: Body = []
    names: set[str] = set()
    for node in reversed(body):
        if isinstance(node, Declare) and node.optional and node.name not in names:
            continue
        names |= used([node])
        kept.append(node)
    return kept[::-1]


def drop_empty_branches(body: Body) -> Body:
    """Drop loops, scopes and branches that contain only comments."""
    found: Body = []
    for node in body:
        match node:
            case Branch():
                kept = list(node.arms)
                while kept and _does_nothing(kept[-1].body):
                    kept.pop()
                if kept:
                    found.append(replace(node, arms=kept))
            case ForLoop() | InnerScope() if _does_nothing(node.body):
                pass
            case _:
                found.append(node)
    return found


def _does_nothing(body: Body) -> bool:
    return all(isinstance(node, Comment) for node in body)


def join_equal_arms(body: Body) -> Body:
    """Join neighbouring arms of a branch with equal bodies."""
    found: Body = []
    for node in body:
        if not isinstance(node, Branch):
            found.append(node)
            continue
        arms = node.arms[:1]
        for arm in node.arms[1:]:
            last = arms[-1]
            if arm.body == last.body and last.condition is not None and arm.condition is not None:
                either = joined(" || ", (code("({})", each) for each in (last.condition, arm.condition)))
                arms[-1] = replace(last, condition=either)
            else:
                arms.append(arm)
        found.append(replace(node, arms=arms))
    return found


def merge_adjacent_branches(body: Body, steady: Collection[str]) -> Body:
    """Merge neighbouring branches with equal conditions on names that no statement changes.

    Comments between two branches belong to the second, and move into the branch.  Branches that declare the
    same names are not merged.

    Args:
        body: the statements.
        steady: names that nothing writes after their declaration.
    """
    found: Body = []
    for node in body:
        last = len(found) - 1
        while last >= 0 and isinstance(found[last], Comment):
            last -= 1
        before = found[last] if last >= 0 else None
        if (
            isinstance(before, Branch)
            and isinstance(node, Branch)
            and len(before.arms) == len(node.arms) == 1
        ):
            [first], [second] = before.arms, node.arms
            if (
                first.condition is not None
                and first.condition == second.condition
                and first.condition.names <= set(steady)
                and not declared(first.body) & (used(second.body) | declared(second.body))
            ):
                both = replace(first, body=[*first.body, *found[last + 1 :], *second.body])
                found[last:] = [replace(before, arms=[both])]
                continue
        found.append(node)
    return found


def tidy(body: Body, steady: Collection[str]) -> Body:
    """Return a body after all passes, which also apply to the bodies inside it.

    Args:
        body: the statements.
        steady: names that nothing writes after their declaration.
    """
    inside: Body = []
    for node in body:
        match node:
            case Branch():
                arms = [replace(arm, body=tidy(arm.body, steady)) for arm in node.arms]
                inside.append(replace(node, arms=arms))
            case ForLoop() | InnerScope():
                inside.append(replace(node, body=tidy(node.body, steady)))
            case _:
                inside.append(node)
    made = merge_adjacent_branches(join_equal_arms(drop_empty_branches(inside)), steady)
    return drop_unused_declarations(made)
