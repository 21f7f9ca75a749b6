"""Write the tutorial's programs as notebooks: the explanation, the program, and a cell that runs it."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

from scripts.docs.steps import parts, share


def cells(text: str) -> list[tuple[str, str]]:
    """Return the cells of a program as (kind, text): its explanation, then one for each group of definitions.

    The program runs as in a shell with ``--small``, because a notebook's arguments are those of its kernel.
    """
    title, prose, code = parts(text)
    tree = ast.parse(code)
    starts = []
    for node in tree.body:
        decorators = getattr(node, "decorator_list", [])
        if isinstance(node, ast.FunctionDef) and node.name == "main":
            starts.append(node.lineno)
        elif decorators:
            starts.append(min(one.lineno for one in decorators))
        elif isinstance(node, ast.If):
            starts.append(node.lineno)
    lines = code.splitlines()
    edges = [1, *starts, len(lines) + 1]
    blocks = ["\n".join(lines[a - 1 : b - 1]).strip() for a, b in pairwise(edges)]
    last = 'import sys\n\nsys.argv = ["notebook", "--small"]\nmain()'
    program = [block for block in blocks if block and not block.startswith("if __name__")]
    return [("markdown", f"# {title}\n\n{prose}"), *(("code", block) for block in program), ("code", last)]


def notebook(path: Path) -> str:
    """Return a program of the tutorial as a notebook of format 4."""
    import nbformat

    book = nbformat.v4.new_notebook()
    title_and_prose, *program = cells(path.read_text(encoding="utf-8"))
    told = title_and_prose[1].replace("\n\n", f"\n\n{share(path.stem)}\n\n", 1)
    book.cells = [nbformat.v4.new_markdown_cell(told)]
    book.cells += [nbformat.v4.new_code_cell(text) for _, text in program]
    for number, cell in enumerate(book.cells):
        cell["id"] = f"cell-{number}"
    nbformat.validate(book)
    return nbformat.writes(book) + "\n"
