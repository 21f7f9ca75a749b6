"""Names that variables of generated C cannot have."""

from __future__ import annotations

_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const
consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do
double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable
namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template
this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t
while xor xor_eq main NULL
"""
KEYWORDS = frozenset(_KEYWORDS.split())
"""Words of C++ that no variable may have as its name."""


def not_reserved(name: str) -> str:
    """A name without the underscores before it that C++ keeps for itself, as in ``__syncthreads``."""
    bare = name.lstrip("_")
    is_reserved = bare[:1].isalpha() and (name.startswith("__") or (bare != name and bare[0].isupper()))
    return bare if is_reserved else name
