"""The tree that C text is printed from: names of a piece, passes, and the printed form."""

from __future__ import annotations

import re

import pytest

from tilewright.targets.cuda.prelude import DIALECT
from tilewright.targets.statements import (
    Arm,
    Assign,
    Body,
    Branch,
    Code,
    Comment,
    Declare,
    Do,
    ForLoop,
    InnerScope,
    Printer,
    call,
    code,
    joined,
    named,
    tidy,
    used,
)

INT = named("int")
FIRST = code("{} == 0", named("tid"))


def text(body: Body, steady: tuple[str, ...] = ("tid",)) -> str:
    return "\n".join(Printer(60).print(tidy(body, steady), 0))


def do(name: str, *arguments: str) -> Do:
    return Do(call(name, *(named(each) for each in arguments)))


def declare(name: str, *uses: str) -> Declare:
    return Declare(INT, named(name), joined(" + ", map(named, uses)) if uses else Code("1"), optional=True)


def first(*body: object) -> Branch:
    return Branch([Arm(FIRST, list(body))])  # type: ignore[arg-type]


def test_a_piece_names_what_its_parts_name_and_no_word_of_its_template() -> None:
    made = code("const {}* = {} + {}", named("half_t"), call("f", named("x"), of=[named("T")]), 3)
    assert made == "const half_t* = f<T>(x) + 3"
    assert made.names == {"half_t", "f", "x", "T"}


def test_what_nothing_names_is_not_declared() -> None:
    body = [
        declare("a"),
        declare("b", "a"),
        declare("c"),
        InnerScope([declare("a"), do("g", "a")]),
        do("f", "c"),
    ]
    assert text(body) == "int c = 1;\n{\n  int a = 1;\n  g(a);\n}\nf(c);"


def test_a_declaration_stays_for_what_is_used_in_a_body_or_a_head() -> None:
    loop = ForLoop(
        INT, named("i"), Code("0"), code("{} < {}", named("i"), named("n")), Code("1"), [do("f", "a")]
    )
    assert text([declare("n"), declare("a"), loop]) == (
        "int n = 1;\nint a = 1;\nfor (int i = 0; i < n; ++i) f(a);"
    )


def test_what_must_be_declared_is() -> None:
    assert text([Declare(INT, named("a"), Code("1"))]) == "int a = 1;"


def test_ways_in_which_nothing_is_done_are_left_out() -> None:
    asked = [Arm(code("{}", named(each)), []) for each in "ab"]
    assert text([Branch(asked), InnerScope([Comment("nothing")]), do("f")]) == "f();"
    asked[1].body.append(do("g"))
    assert text([Branch([*asked, Arm(None, [])])]) == "if (a) {\n}\nelse if (b) {\n  g();\n}"


def test_neighbours_that_ask_the_same_are_one() -> None:
    body = [first(do("f")), Comment("then"), first(do("g")), do("h"), first(do("f"))]
    assert text(body) == ("if (tid == 0) {\n  f();\n  // then\n  g();\n}\nh();\nif (tid == 0) f();")


@pytest.mark.parametrize(
    ("left", "right"), [("a", "a"), ("a", "b")], ids=["declared twice", "declared where another is meant"]
)
def test_neighbours_stay_two_where_names_would_meet(left: str, right: str) -> None:
    second = [declare("a"), do("g", "a")] if right == left else [do("g", "a")]
    body = [declare("a"), first(declare(left), do("f", left)), first(*second)]
    assert text(body).count("if (tid == 0)") == 2


def test_neighbours_stay_two_where_the_first_changes_what_is_asked() -> None:
    changing = Branch([Arm(code("{} == 0", named("x")), [Assign(named("x"), Code("1"))])])
    again = Branch([Arm(code("{} == 0", named("x")), [do("f")])])
    assert text([changing, again]).count("if") == 2


def test_equal_ways_are_one() -> None:
    arms = [Arm(code("{} < {}", named("tid"), n), [do("f")]) for n in (32, 64)]
    assert text([Branch([*arms, Arm(None, [do("g")])])]) == (
        "if ((tid < 32) || (tid < 64)) {\n  f();\n}\nelse {\n  g();\n}"
    )


def test_long_lines_are_broken_where_few_parentheses_are_open() -> None:
    [line, *rest] = text([do("function", *(f"argument_{i}" for i in range(8)))]).split("\n")
    assert len(line) <= 60
    assert rest
    assert all(each.startswith("    argument") for each in rest)


def test_what_is_said_of_a_long_line_stands_above_it() -> None:
    long = code("{} + {} + {}", *(named(letter * 12) for letter in "abc"))
    assert text([Declare(INT, named("x"), long, comment="of " + str(long)), Do(named("x"))]).splitlines() == [
        f"// of {long}",
        f"int x = {long};",
        "x;",
    ]
    short = Declare(INT, named("x"), code("1"), comment="of 2")
    assert text([short, Do(named("x"))]).splitlines()[0] == "int x = 1;  // of 2"


def test_pieces_come_with_what_they_name() -> None:
    """Every piece of CUDA's prelude comes with exactly the pieces that it names."""
    known = DIALECT.prelude
    for name, piece in known.items():
        words, open_words = {name}, [piece]
        while open_words:
            found = set(re.findall(r"\w+", open_words.pop())) & known.keys() - words
            words |= found
            open_words += [known[each] for each in found]
        assert list(DIALECT.before({name}, {})) == [known[each] for each in known if each in words], name


def test_pieces_that_nothing_calls_are_not_written() -> None:
    body = [declare("a"), Declare(INT, named("b"), call("floor_div", named("a"), named("a")), optional=True)]
    assert used(tidy(body, ())) == set()
