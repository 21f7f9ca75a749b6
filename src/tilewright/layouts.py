"""The algebra of layouts with the names of CuTe, and transforms of views with a method `apply`.

>>> import tilewright as tw
>>> print(tw.layouts.logical_divide(tw.Layout((8, 8), (8, 1)), (2, 4)))
((2,4),(4,2)):((8,16),(1,4))
"""

from tilewright.layout.algebra import (
    blocked_product,
    coalesce,
    complement,
    composition,
    left_inverse,
    logical_divide,
    logical_product,
    make_layout,
    raked_product,
    right_inverse,
    tiled_divide,
    zipped_divide,
)
from tilewright.namespaces import namespace
from tilewright.views.transforms import AsStrided, Broadcast, Embed, Merge, Pad, PadTo, Permute, Unmerge

__all__ = [
    "AsStrided",
    "Broadcast",
    "Embed",
    "Merge",
    "Pad",
    "PadTo",
    "Permute",
    "Unmerge",
    "blocked_product",
    "coalesce",
    "complement",
    "composition",
    "left_inverse",
    "logical_divide",
    "logical_product",
    "make_layout",
    "raked_product",
    "right_inverse",
    "tiled_divide",
    "zipped_divide",
]

__getattr__, __dir__ = namespace(__name__, __all__)
