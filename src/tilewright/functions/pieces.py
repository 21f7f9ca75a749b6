"""Hand-written C++ functions and types that precede a generated text; each names those that it uses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

_DEFINED = re.compile(r"^(?:DEVICE|static)\b[^{;\n]*\b(\w+)\(", re.MULTILINE)
"""The name of a function at its definition."""

_UNREAD = re.compile(r'//[^\n]*|"[^"\n]*"')
"""Comments and strings of a C++ text."""


@dataclass(frozen=True)
class Pieces:
    """Pieces of C++ text, each by the name of a function or type that it defines.

    Args:
        texts: the pieces, in an order that C++ accepts.
    """

    texts: Mapping[str, str]

    @cached_property
    def _piece_of(self) -> dict[str, str]:
        """The piece that defines a function or type."""
        found: dict[str, str] = {}
        for name, text in self.texts.items():
            for defined in _DEFINED.findall(text) or (name,):
                found.setdefault(defined, name)
        return found

    def needed(self, names: Iterable[str]) -> list[str]:
        """Return the pieces of some names, and those that their texts use, in order.

        Example:
            >>> texts = {"one": "static int one() { return 1; }", "two": "static int two() { return one(); }"}
            >>> Pieces(texts).needed(["two", "x"])
            ['one', 'two']
        """
        wanted, found = [name for name in names if name in self.texts], set[str]()
        while wanted:
            name = wanted.pop()
            if name not in found:
                found.add(name)
                words = re.findall(r"[A-Za-z_]\w*", _UNREAD.sub("", self.texts[name]))
                wanted += {self._piece_of[word] for word in words if word in self._piece_of}
        return [name for name in self.texts if name in found]
