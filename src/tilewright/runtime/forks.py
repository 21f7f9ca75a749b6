"""What a process must not take over from the one that forked it.

A child begins with a copy of its parent's memory and with one thread, the one that forked.  A lock that
another thread held stays locked for ever, the workers of the parent's pool do not exist, and the CUDA driver
refuses to work.  Whoever owns such a thing has a method ``renew``, which runs in the child before all else.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol, TypeVar


class Renewed(Protocol):
    """Something that begins anew in a forked child."""

    def renew(self) -> None:
        """Replace what only the parent may use; no other thread exists meanwhile."""


Owner = TypeVar("Owner", bound=Renewed)

_owners: weakref.WeakSet[Renewed] = weakref.WeakSet()


def renew_after_fork(owner: Owner) -> Owner:
    """Have ``owner.renew()`` called in every forked child while something else keeps the owner alive."""
    _owners.add(owner)
    return owner


def _renew_all() -> None:
    for owner in list(_owners):
        owner.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_all)
