"""Write the reference: a page for each public namespace, from docstrings."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from scripts.docs.pages import ROOT, Entry, PageError, fenced

from tilewright.namespaces import SPELLED

FRAMEWORKS = {name: name for name in ("tilewright.torch", "tilewright.distributed", "tilewright.jax")}
"""Namespaces that need a framework, which is absent here: their source is read, not imported."""

SECTION = re.compile(r"^(Args|Returns|Raises|Warns|Yields|Example|Source):$", re.MULTILINE)
FIELD = re.compile(r"^(\S[^:\n]*?): ?(.*)$")
QUOTED = re.compile(r"(?<![`\w])`([A-Za-z_][\w.]*)`(?!`)")


class Name(NamedTuple):
    """A public name: how users write it, its kind, signature, docstring, file, and its members."""

    full: str
    kind: str
    signature: str
    doc: str
    file: str
    members: tuple[Name, ...] = ()


def names_of(module: str, spelled: str) -> Iterator[Name]:
    """Yield the public names of a namespace."""
    if module in FRAMEWORKS:
        yield from _read(module, spelled)
        return
    space = importlib.import_module(module)
    for name in space.__all__:
        what = getattr(space, name)
        if not isinstance(what, ModuleType):
            yield described(f"{spelled}.{name}", what, space)


def described(full: str, what: Any, space: Any = None) -> Name:
    """Return the description of a value: a function, a class with its members, or a constant."""
    last = full.rpartition(".")[2]
    if isinstance(what, type):
        members = tuple(described(f"{full}.{name}", member) for name, member in members_of(what))
        doc = inspect.getdoc(what) or ""
        made = "Args:" in doc or "dataclass" in str(getattr(what, "__dataclass_params__", ""))
        signature = _signature(what) if made and not issubclass(what, Exception) else ""
        return Name(full, "class", signature, doc, _file(what), members)
    if isinstance(what, property):
        return Name(full, "property", "", inspect.getdoc(what) or "", "")
    if inspect.isroutine(what):
        parent = full.count(".") > 1 and full.split(".")[-2][0].isupper()
        return Name(
            full,
            "method" if parent else "function",
            _signature(what),
            inspect.getdoc(what) or "",
            _file(what),
        )
    return Name(full, "data", "", _constant(last, what, space), "")


def members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class that this library defines."""
    if issubclass(kind, Exception):
        return
    for name, member in inspect.getmembers_static(kind):
        if name.startswith("_"):
            continue
        what = getattr(kind, name) if isinstance(member, classmethod | staticmethod) else member
        ours = getattr(what.fget if isinstance(what, property) else what, "__module__", "") or ""
        if (inspect.isroutine(what) or isinstance(what, property)) and ours.startswith("tilewright"):
            yield name, what


def _constant(name: str, what: Any, space: Any) -> str:
    """Return what a constant is: the docstring after its assignment, or its class and value."""
    kind = type(what).__name__
    article = "An" if kind[0] in "AEIO" else "A"
    return _after_assignment(name, space) or f"{article} `{kind}`: ``{what!r}``."


def _after_assignment(name: str, space: Any) -> str:
    tree = ast.parse(inspect.getsource(space))
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        targets = before.targets if isinstance(before, ast.Assign) else [getattr(before, "target", None)]
        here = any(isinstance(one, ast.Name) and one.id == name for one in targets)
        if here and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            return inspect.cleandoc(str(after.value.value))
    return ""


def _file(what: Any) -> str:
    try:
        found = inspect.getsourcefile(inspect.unwrap(what))
    except TypeError:
        return ""
    return Path(found).relative_to(ROOT).as_posix() if found and Path(found).is_relative_to(ROOT) else ""


def _signature(what: Any) -> str:
    try:
        signature = inspect.signature(what)
    except (TypeError, ValueError):
        return "(...)"
    parameters = [
        one
        for number, one in enumerate(signature.parameters.values())
        if not (number == 0 and one.name in ("self", "cls"))
    ]
    parts: list[str] = []
    for one in parameters:
        if one.kind is one.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        star = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        typed = "" if one.annotation is one.empty else f": {_type(one.annotation)}"
        default = "" if one.default is one.empty else f"{' = ' if typed else '='}{_default(one.default)}"
        parts.append(f"{star}{one.name}{typed}{default}")
        if one.kind is one.POSITIONAL_ONLY and one is [p for p in parameters if p.kind is one.kind][-1]:
            parts.append("/")
    returned = signature.return_annotation
    arrow = (
        ""
        if returned in (signature.empty, None, "None") or isinstance(what, type)
        else f" -> {_type(returned)}"
    )
    return f"({', '.join(parts)}){arrow}"


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(tilewright|typing|collections)\.([a-z_]+\.)*", "", text)


def _default(value: Any) -> str:
    text = repr(value)
    return "..." if "<" in text or "\n" in text else text


def _read(module: str, spelled: str) -> Iterator[Name]:
    """Yield the public names of a namespace from its source, without importing it."""
    package = ROOT / "src" / Path(*module.split("."))
    tree = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))
    places = {
        alias.asname or alias.name: str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    [names] = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    for name in names:
        file = ROOT / "src" / (places.get(name, f"{module}.__init__").replace(".", "/") + ".py")
        body = ast.parse(file.read_text(encoding="utf-8")).body
        yield _of_source(name, spelled, body, file.relative_to(ROOT).as_posix())


def _of_source(name: str, parent: str, body: list[ast.stmt], file: str) -> Name:
    full = f"{parent}.{name}"
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            inside = parent.rpartition(".")[2][0].isupper()
            if any(ast.unparse(one) == "property" for one in node.decorator_list):
                return Name(full, "property", "", ast.get_docstring(node) or "", file)
            text = ast.unparse(node.args)
            text = re.sub(r"^(self|cls)(, )?", "", text) if inside else text
            arrow = f" -> {ast.unparse(node.returns)}" if node.returns else ""
            kind = "method" if inside else "function"
            return Name(full, kind, f"({text}){arrow}", ast.get_docstring(node) or "", file)
        if isinstance(node, ast.ClassDef) and node.name == name:
            made = [one for one in node.body if isinstance(one, ast.FunctionDef)]
            members = tuple(
                _of_source(one.name, full, node.body, file)
                for one in made
                if not one.name.startswith("_") and ast.get_docstring(one)
            )
            first = [one for one in made if one.name == "__init__"]
            signature = f"({re.sub(r'^self(, )?', '', ast.unparse(first[0].args))})" if first else ""
            return Name(full, "class", signature, ast.get_docstring(node) or "", file, members)
    return Name(full, "data", "", "", file)


def undocumented(name: Name) -> Iterator[str]:
    """Yield a name, and its members, if they have no docstring."""
    if not name.doc:
        yield name.full
    for member in name.members:
        yield from undocumented(member)


def spaces() -> dict[str, list[Name]]:
    """Return the public names of all namespaces, by how users write the namespace."""
    return {
        spelled: sorted(names_of(module, spelled), key=lambda one: one.full.lower())
        for module, spelled in {**SPELLED, **FRAMEWORKS}.items()
    }


def pages(found: dict[str, list[Name]]) -> dict[str, tuple[Entry, str]]:
    """Return the pages of the reference by their place.

    Raises:
        PageError: a public name has no docstring.
    """
    missing = [one for names in found.values() for name in names for one in undocumented(name)]
    if missing:
        raise PageError("\n".join(f"{name}: a public name without a docstring" for name in missing))
    known = {name.full: spelled for spelled, names in found.items() for name in names}
    known |= {m.full: spelled for spelled, names in found.items() for name in names for m in name.members}
    made = {}
    for spelled, names in found.items():
        place = f"reference/{spelled.replace('tilewright.', '').replace('tw.', '')}.md"
        made[place] = (Entry(spelled, place), _page(spelled, names, known))
    return made


def _page(spelled: str, names: list[Name], known: dict[str, str]) -> str:
    module = {spelled: module for module, spelled in {**SPELLED, **FRAMEWORKS}.items()}[spelled]
    if module in FRAMEWORKS:
        doc = ast.get_docstring(
            ast.parse((ROOT / "src" / Path(*module.split(".")) / "__init__.py").read_text(encoding="utf-8"))
        )
    else:
        doc = inspect.getdoc(importlib.import_module(module))
    lines = [f"# {spelled}\n", prose(doc or "", spelled, known), ""]
    groups = {"Functions": "function", "Classes": "class", "Constants": "data"}
    for title, kind in groups.items():
        inside = [name for name in names if name.kind == kind]
        if kind == "class":
            errors = [name for name in inside if name.full.endswith(("Error", "Warning"))]
            inside = [name for name in inside if name not in errors]
        if inside:
            lines += [f"## {title}\n", index(inside), *[entry(name, spelled, known) for name in inside]]
        if kind == "class" and errors:
            lines += [
                "## Errors and warnings\n",
                index(errors),
                *[entry(one, spelled, known) for one in errors],
            ]
    return "\n".join(lines)


def index(names: list[Name]) -> str:
    """Return links to the names of a page."""
    links = [f"[`{name.full.rpartition('.')[2]}`](#{name.full})" for name in names]
    return " · ".join(links) + "\n"


def entry(name: Name, spelled: str, known: dict[str, str], depth: int = 0) -> str:
    """Return the directive that describes a name, its members inside it."""
    inner = "\n".join(entry(member, spelled, known, depth + 1) for member in name.members)
    body = prose(name.doc, spelled, known)
    there = f'<a href="../source/{name.file}.html#{name.full}">{name.file}</a>'
    where = f"\n\n{{.source}}\nSource: {there}\n" if name.file and depth == 0 else ""
    fence = ":" * (8 - depth)
    signature = _with_places(re.sub(r"\s+", " ", name.signature), spelled, known)
    return f"{fence}{{py:{name.kind}}} {name.full}{signature}\n{body}{where}\n\n{inner}\n{fence}\n"


def _with_places(signature: str, spelled: str, known: dict[str, str]) -> str:
    """Return a signature whose classes have the namespace in which they are public."""

    def placed(found: re.Match[str]) -> str:
        places = (f"{spelled}.{found[0]}", f"tw.{found[0]}")
        return next((full for full in places if full in known), found[0])

    return re.sub(r"(?<![\w.'\"])[A-Z]\w+(?![\w.'\"=:])", placed, signature)


def prose(doc: str, spelled: str, known: dict[str, str]) -> str:
    """Return a docstring as Markdown: its text, then fields, then examples."""
    parts = SECTION.split(doc)
    lines = [_text(parts[0], spelled, known)]
    for title, body in zip(parts[1::2], parts[2::2], strict=True):
        inside, rest = _split(body)
        body = inspect.cleandoc(inside)
        if title == "Args":
            lines += [f":param {name}: {_hanging(text, spelled, known)}" for name, text in fields(body)]
        elif title in ("Raises", "Warns"):
            lines += [f":raises {name}: {_hanging(text, spelled, known)}" for name, text in fields(body)]
        elif title in ("Returns", "Yields"):
            lines.append(f":returns: {_hanging(body, spelled, known)}")
        else:
            lines += ["", f"**{title}**", "", _text(body, spelled, known)]
        lines += ["", _text(rest, spelled, known), ""] if rest.strip() else []
    return "\n".join(lines)


def _split(body: str) -> tuple[str, str]:
    """Return the indented lines of a section, and the text that follows them."""
    after = re.search(r"^(?=\S)", body, re.MULTILINE)
    return (body[: after.start()], body[after.start() :]) if after else (body, "")


def fields(body: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each entry of a section such as Args.

    Example:
        >>> list(fields("a: one\\n    more\\nb: two"))
        [('a', 'one\\nmore'), ('b', 'two')]
    """
    for part in re.split(r"\n(?=\S)", body):
        head, *rest = part.split("\n")
        found = FIELD.match(head)
        if found is None:
            raise PageError(f"no name before the colon in {part!r}")
        yield found[1].strip("`*"), inspect.cleandoc("\n".join([found[2], *rest]))


def _hanging(text: str, spelled: str, known: dict[str, str]) -> str:
    return _text(text, spelled, known).replace("\n", "\n    ")


def _text(text: str, spelled: str, known: dict[str, str]) -> str:
    """Return text of a docstring as Markdown: examples become blocks of code, public names become links."""
    out: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        shown = inspect.cleandoc(paragraph)
        if shown.startswith(">>>"):
            if out and out[-1].startswith("```pycon") and out[-1].endswith("```\n"):
                out[-1] = out[-1].removesuffix("```\n") + f"{shown}\n```\n"
            else:
                out.append(fenced(shown, "pycon"))
        elif paragraph.startswith("    ") and not re.match(r"\s+[-*\d]", paragraph):
            out.append(fenced(shown, "text"))
        else:
            out.append(_linked(paragraph, spelled, known))
    return "\n\n".join(out).replace("```\n\n\n", "```\n\n")


def _linked(text: str, spelled: str, known: dict[str, str]) -> str:
    def link(found: re.Match[str]) -> str:
        for full in (f"{spelled}.{found[1]}", f"tw.{found[1]}", found[1]):
            if full in known:
                return f"{{py:obj}}`{found[1]} <{full}>`"
        return found[0]

    return QUOTED.sub(link, re.sub(r"([<*_])(?![^`]*`)", r"\1", text))
