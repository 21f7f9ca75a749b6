"""Groups along K of the weights of `scaled_mm`, each with a scale, and perhaps a zero point, per column."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.errors import LaunchError
from tilewright.layout.counts import divisor_at_most
from tilewright.runtime.arrays import ArrayInfo

OF_GROUPS = ("scale_b", "zero_b")
"""The arrays that have a number for each group and column."""


def in_groups(infos: Mapping[str, ArrayInfo], group: int | None, op: str = "scaled_mm") -> bool:
    """Whether the weights have groups along K.

    Args:
        infos: the arrays, by the names of the arguments.
        group: how many neighbours along K a group has; None: there are no groups.
        op: what messages call the operation.

    Raises:
        LaunchError: groups that are not whole, or arrays that do not fit them.
    """
    if group is None:
        if "zero_b" in infos:
            raise LaunchError(
                f"{op}: zero_b belongs to groups along K, and group is None; nearest legal choice: "
                f"group={infos['b'].shape[0]}, and zero_b and scale_b of one row"
            )
        return False
    shape = infos["b"].shape
    if len(shape) != 2:
        what = f"b has shape {shape}"
        raise LaunchError(f"{op}: group={group} of one matrix of weights, and {what}; nearest: (K, N)")
    depth, columns = shape
    if group < 1:
        raise LaunchError(
            f"{op}: group={group} is no number of neighbours along K; nearest legal choice: group={depth}, "
            "one group of all, or None"
        )
    if depth % group:
        nearest = divisor_at_most(depth, group) if depth else 1
        raise LaunchError(
            f"{op}: group={group} does not divide K, {depth}; nearest legal choice: group={nearest}"
        )
    given = [name for name in OF_GROUPS if name in infos]
    if not given:
        raise LaunchError(
            f"{op}: group={group}, and neither scale_b nor zero_b is an array; nearest legal choice: "
            f"scale_b of shape {(depth // group, columns)}"
        )
    for name in given:
        if infos[name].shape != (depth // group, columns):
            raise LaunchError(
                f"{op}: {name} has shape {infos[name].shape}; groups of {group} of b, {shape}, have one "
                f"number each and for each column: {(depth // group, columns)}"
            )
    return True


def without_groups(infos: Mapping[str, ArrayInfo]) -> dict[str, ArrayInfo]:
    """The arrays that are broadcast to the result, and the operands.

    Args:
        infos: the arrays, by the names of the arguments.
    """
    return {name: info for name, info in infos.items() if name not in OF_GROUPS}
