"""Types of values: tensors in memory, fragments in registers, scalars."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from tilewright.calls import layouts
from tilewright.dtypes import DType
from tilewright.errors import LayoutError, close_to, shown
from tilewright.symbolic.nodes import Int
from tilewright.symbolic.rebuilding import elements
from tilewright.threads.distribution import Distribution
from tilewright.views.view import View


class OperandTypeError(TypeError):
    """A value has the wrong type for an operation."""


class Memory(Enum):
    """The memory space of a tensor; see `Kernel`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def look(X):
        ...     tw.shared((32,), tw.f16)
        >>> traced = look(np.ones(64, np.float32), target="reference").kernel
        >>> traced.tensors[0].tensor.memory, traced.body.ops[0].results[0].tensor.memory
        (<Memory.GLOBAL: 'global'>, <Memory.SHARED: 'shared'>)
    """

    @classmethod
    def _missing_(cls, value: object) -> Memory:
        known = [one.value for one in cls]
        said = f"value must be one of {', '.join(map(repr, known))}{close_to(value, known)}"
        raise LayoutError(f"Memory({shown(value)}): {said}")

    GLOBAL = "global"
    SHARED = "shared"


@dataclass(frozen=True, slots=True)
class MapInMemory:
    """A tensor map in a table in memory, and its array.

    Args:
        table: an i64 tensor of two dimensions; the launcher has written the map there.
        row: the row of the table.
        column: the first column of the map.
        array: the array, as a view of its buffer; bulk copies with the map transfer boxes of it.
    """

    table: Value
    row: Int
    column: int
    array: View


@layouts.made("the type of a tensor in kernel.trace(...) is one")
@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor in addressable memory; see `Kernel`.

    Args:
        memory: global or shared.
        dtype: element type.
        view: coordinates to element offsets in the buffer.
        align: alignment of the buffer's first element, in bytes.
        distribution: the distribution of its coordinates over threads, if it is partitioned.
        indices: index tensors of its coordinates; the operation that accesses the tensor reads them.
        block: the cluster rank of the block that owns the shared memory; None: this block.
        map: for an array that is part of a buffer, the tensor map of its bulk copies; None: bulk copies
            transfer boxes of the whole buffer.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def look(X):
        ...     X.tile((32,), (1,))
        >>> traced = look(np.ones(64, np.float32), target="reference").kernel
        >>> [op.results[0].type for op in traced.walk()]
        [global f32 (32) -> i0 + 32 if i0 + 32 < N]
    """

    memory: Memory
    dtype: DType
    view: View
    align: int = 16
    distribution: Distribution | None = None
    indices: tuple[Value, ...] = ()
    block: Int | None = None
    map: MapInMemory | None = None

    def __post_init__(self) -> None:
        read = {element.table.name for element in elements((self.view.offset, self.view.valid))}
        if read - {index.buffer.name for index in self.indices}:
            raise TypeError(
                f"a view whose place depends on {', '.join(sorted(read))}, which is not in its indices"
            )

    @property
    def shape(self) -> tuple[Int, ...]:
        """Extents."""
        return self.view.shape

    def __repr__(self) -> str:
        return f"{self.memory.value} {self.dtype} {self.view}"


@layouts.made("the type of a fragment in kernel.trace(...) is one")
@dataclass(frozen=True, slots=True)
class FragmentType:
    """A tile held in the registers of a group of threads, statically indexed; see `Kernel`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def look(X):
        ...     tw.fragment(tw.blocked((8, 4), (8, 4)), tw.f16)
        >>> traced = look(np.ones(64, np.float32), target="reference").kernel
        >>> [op.results[0].type for op in traced.walk()]
        [f16 fragment (8, 4)]
    """

    dtype: DType
    distribution: Distribution

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tile."""
        return self.distribution.shape

    def __repr__(self) -> str:
        return f"{self.dtype} fragment {self.shape}"


@dataclass(frozen=True, slots=True)
class ScalarType:
    """One number, the same for all threads of a block; see `Kernel`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", alpha=tw.f32)
        ... def look(X, alpha):
        ...     twice = alpha * 2
        >>> traced = look(np.ones(64, np.float32), 1.0, target="reference").kernel
        >>> [op.results[0].type for op in traced.walk()]
        [f32 number]
    """

    dtype: DType

    def __repr__(self) -> str:
        return f"{self.dtype} number"


@dataclass(frozen=True, slots=True)
class VariableType:
    """A mutable integer, the same for all threads of a block (`tw.var`); see `Kernel`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def look(X):
        ...     tw.var(0)
        >>> traced = look(np.ones(64, np.float32), target="reference").kernel
        >>> [op.results[0].type for op in traced.walk()][:1]
        [variable]
    """

    def __repr__(self) -> str:
        return "variable"


@layouts.made("the type of barriers in kernel.trace(...) is one")
@dataclass(frozen=True, slots=True)
class BarrierType:
    """``stages`` transaction barriers, each completing a phase after ``arrivals`` arrivals; see `Kernel`.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def look(X):
        ...     tw.hopper.mbarrier(2, arrivals=1)
        >>> traced = look(np.ones(64, np.float32), target="reference").kernel
        >>> [op.results[0].type for op in traced.walk()]
        [2 barriers of 1 arrivals]
    """

    stages: int
    arrivals: int

    def __repr__(self) -> str:
        return f"{self.stages} barriers of {self.arrivals} arrivals"


Type: TypeAlias = TensorType | FragmentType | ScalarType | VariableType | BarrierType


@layouts.made("the results of the operations of kernel.trace(...) are values")
@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """The result of an operation or a parameter, equal only to itself; see `Kernel`.

    Args:
        name: unique within its kernel.
        type: its type.
        root: for a view of a tensor, the value that owns the buffer.
        written: for a view without a variable, the tensor and the source text of the view.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def look(X):
        ...     part = X.tile((32,), (0,))
        >>> traced = look(np.ones(64, np.float32), target="reference").kernel
        >>> view = traced.body.ops[0].results[0]
        >>> view, view.buffer.name, view.is_tensor, view.dtype
        (<part: global f32 (32) -> i0 if i0 < N>, 'X', True, f32)
    """

    name: str
    type: Type
    root: Value | None = field(default=None, repr=False)
    written: tuple[Value, str] | None = field(default=None, repr=False)

    @property
    def buffer(self) -> Value:
        """The value that owns the memory: itself, unless this is a view."""
        return self if self.root is None else self.root

    @property
    def array(self) -> View:
        """The array whose boxes bulk copies transfer: that of the tensor map, or the whole buffer."""
        held = self.tensor.map
        return self.buffer.tensor.view if held is None else held.array

    @property
    def tensor(self) -> TensorType:
        """The type, which must be a tensor in memory."""
        if not isinstance(self.type, TensorType):
            raise OperandTypeError(f"{self.name} is not a tensor in memory but {self.type}")
        return self.type

    @property
    def fragment(self) -> FragmentType:
        """The type, which must be a fragment."""
        if not isinstance(self.type, FragmentType):
            raise OperandTypeError(f"{self.name} is not a fragment but {self.type}")
        return self.type

    @property
    def dtype(self) -> DType:
        """Element type of a tensor, fragment or scalar."""
        if isinstance(self.type, VariableType | BarrierType):
            raise OperandTypeError(f"{self.name} has no element type")
        return self.type.dtype

    @property
    def is_fragment(self) -> bool:
        """Whether the value is a fragment."""
        return isinstance(self.type, FragmentType)

    @property
    def is_tensor(self) -> bool:
        """Whether the value is a tensor in addressable memory."""
        return isinstance(self.type, TensorType)

    def __str__(self) -> str:
        """The name in comments and messages: its own, or the author's source text."""
        return self.name if self.written is None else "".join(map(str, self.written))

    def __repr__(self) -> str:
        return f"<{self.name}: {self.type!r}>"
