"""What is mended in a tree of statements before it is printed: small passes, each with a name.

Each takes the statements of one body and gives others; `tidy` applies all of them, innermost bodies first.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.targets.statements import (
    Arm,
    Body,
    Branch,
    Comment,
    Declare,
    Loop,
    Scope,
    Statement,
    code,
    declared,
    joined,
    used,
)


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
        case Loop() | Scope():
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
        case Loop() | Scope():
            return replace(node, body=tidy(node.body, steady))
        case _:
            return node
