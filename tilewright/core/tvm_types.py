"""Type annotations for the TVM values that this package works with.

TVM's package has no `py.typed`, so a type checker treats all its values as `Any`. This module
therefore describes the values that compute kernels, as far as this package uses them:

    Expression, TirBuffer, Tensor, PrimFunc    protocols that a type checker can verify
    all other names                            TVM's own classes, as documentation

Importing this module does not import TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, SupportsInt, TypeAlias

from numpy.typing import NDArray

if TYPE_CHECKING:
    from tvm.ir import Attrs as CallAttributes
    from tvm.ir import Call as RelaxCall
    from tvm.ir import Expr as RelaxExpr
    from tvm.ir import GenericConst as RelaxConstant
    from tvm.ir import IRModule
    from tvm.ir import TensorLoad as BufferLoad
    from tvm.ir import Type as RelaxType
    from tvm.ir.transform import Pass
    from tvm.relax import Binding as RelaxBinding
    from tvm.relax import BlockBuilder, VMExecutable
    from tvm.relax import Function as RelaxFunction
    from tvm.relax import Var as RelaxVar
    from tvm.relax.dpl import DFPattern
    from tvm.relax.transform import PatternCheckContext
    from tvm.runtime import Module as RuntimeModule
    from tvm.runtime import Tensor as RuntimeTensor
    from tvm.s_tir import SBlock, Schedule
    from tvm.s_tir.meta_schedule import TuneContext
    from tvm.s_tir.meta_schedule.feature_extractor import PerStoreFeature
    from tvm.s_tir.schedule import LoopRV as Loop
    from tvm.s_tir.schedule import SBlockRV as Block
    from tvm.target import Target as TvmTarget
    from tvm.tirx import AllocBuffer, AttrStmt, BufferStore, For, IterVar
    from tvm.tirx import FloatImm as FloatConstant
    from tvm.tirx import Stmt as Statement
    from tvm.tirx import Var as LoopVar
    from tvm.tirx.expr import BinaryOpExpr, CmpExpr

    BinaryOperation: TypeAlias = BinaryOpExpr | CmpExpr
else:  # needed at run time, because some annotations are evaluated at import
    AllocBuffer = AttrStmt = BinaryOperation = BufferLoad = BufferStore = FloatConstant = Any
    Block = BlockBuilder = For = IRModule = IterVar = Loop = LoopVar = Pass = Any
    CallAttributes = DFPattern = PatternCheckContext = PerStoreFeature = TuneContext = Any
    RelaxBinding = RelaxCall = RelaxConstant = RelaxExpr = RelaxFunction = Any
    RelaxType = RelaxVar = Any
    RuntimeModule = RuntimeTensor = SBlock = Schedule = Statement = TvmTarget = VMExecutable = Any

__all__ = [
    "AllocBuffer",
    "Array",
    "AttrStmt",
    "BinaryOperation",
    "Block",
    "BlockBuilder",
    "BufferLoad",
    "BufferStore",
    "CallAttributes",
    "Combiner",
    "Condition",
    "DFPattern",
    "Expression",
    "FloatConstant",
    "For",
    "IRModule",
    "IterVar",
    "Loop",
    "LoopVar",
    "OnnxAttributes",
    "Pass",
    "PatternCheckContext",
    "PerStoreFeature",
    "Place",
    "PrimFunc",
    "RelaxBinding",
    "RelaxCall",
    "RelaxConstant",
    "RelaxExpr",
    "RelaxFunction",
    "RelaxType",
    "RelaxVar",
    "RuntimeModule",
    "RuntimeTensor",
    "SBlock",
    "Schedule",
    "Statement",
    "Tensor",
    "TirBuffer",
    "TuneContext",
    "TvmTarget",
    "VMExecutable",
]  # fmt: skip

Array: TypeAlias = NDArray[Any]
"""A numpy array of any element type."""
Condition: TypeAlias = Any
"""Result of a comparison: a boolean TVM expression, or a `bool` if two Python numbers are compared.
"""
OnnxAttributes: TypeAlias = Mapping[str, Any]
"""Attributes of an ONNX operator by name, as TVM's importer reads them: numbers, bytes, tensors, or
lists of numbers, bytes or tensors."""


Operand: TypeAlias = Any
"""The other operand of an expression: a number or an expression. The type is not a union, because
`int` must also be accepted where `Expression` is expected, and `int` accepts other operands than
TVM does."""


class Expression(Protocol):
    """A scalar or vector number in TensorIR.

    It is either an expression of TVM, or a Python number, which TVM converts to a constant.
    Arithmetic on expressions builds a larger expression; nothing is computed.
    """

    def __add__(self, other: Operand, /) -> Expression: ...
    def __radd__(self, other: Operand, /) -> Expression: ...
    def __sub__(self, other: Operand, /) -> Expression: ...
    def __rsub__(self, other: Operand, /) -> Expression: ...
    def __mul__(self, other: Operand, /) -> Expression: ...
    def __rmul__(self, other: Operand, /) -> Expression: ...
    def __truediv__(self, other: Operand, /) -> Any: ...
    def __rtruediv__(self, other: Operand, /) -> Any: ...
    def __neg__(self, /) -> Expression: ...
    def __lt__(self, other: Operand, /) -> Condition: ...
    def __le__(self, other: Operand, /) -> Condition: ...
    def __gt__(self, other: Operand, /) -> Condition: ...
    def __ge__(self, other: Operand, /) -> Condition: ...


Combiner: TypeAlias = Callable[..., Expression]
"""Function that combines two expressions into one, or a class such as `tirx.Max`."""
Place: TypeAlias = Sequence[Expression]
"""Indices of an element of a buffer or tensor, one per axis."""


class _Indexed(Protocol):
    """Shape, element type and indexing, which buffers and tensors have in common."""

    @property
    def shape(self) -> Sequence[SupportsInt]:
        """The size of each axis."""

    @property
    def dtype(self) -> str:
        """The element type."""

    def __getitem__(self, place: Any, /) -> Expression:
        """Return the element at the given indices.

        Args:
            place: one index per axis.
        """


class TirBuffer(_Indexed, Protocol):
    """Memory that a TensorIR function reads and writes: a parameter or an allocation."""

    @property
    def name(self) -> str:
        """The name of the buffer in TVM's text format."""

    @property
    def data(self) -> Expression:
        """The pointer to the memory of the buffer."""

    @property
    def ty(self) -> Any:
        """The type of the buffer, which includes its shape."""

    def vload(self, begin: Place, dtype: str) -> Expression:
        """Return a vector that is loaded from the buffer.

        Args:
            begin: indices of the first element.
            dtype: type of the vector, such as `float32x8`.
        """

    def access_ptr(self, access_mask: str, *, offset: Expression = 0) -> Expression:
        """Return a pointer into the buffer.

        Args:
            access_mask: "r" to read, "w" to write.
            offset: number of elements before the first element of the access.
        """

    def same_as(self, other: object) -> bool:
        """Return whether another object is the same buffer."""


class Tensor(_Indexed, Protocol):
    """A tensor expression (`tvm.te`), which defines its elements by an expression of their indices.

    Arithmetic on tensors defines a new tensor element by element.
    """

    @property
    def ndim(self) -> int:
        """The number of axes."""

    def __add__(self, other: Operand, /) -> Tensor: ...
    def __radd__(self, other: Operand, /) -> Tensor: ...
    def __mul__(self, other: Operand, /) -> Tensor: ...
    def __rmul__(self, other: Operand, /) -> Tensor: ...


class PrimFunc(Protocol):
    """A TensorIR function of buffers. The function writes its last buffer and reads the others."""

    @property
    def params(self) -> Sequence[TirBuffer]:
        """The parameters, in order."""

    @property
    def body(self) -> Statement:
        """The statement that the function executes."""

    @property
    def ret_type(self) -> Any:
        """The type of the result; the function returns nothing."""

    @property
    def attrs(self) -> Mapping[str, Any] | None:
        """The attributes of the function by name."""

    def with_attr(self, key: str, value: object) -> PrimFunc:
        """Return a copy of the function with one more attribute."""

    def with_attrs(self, attributes: Any) -> PrimFunc:
        """Return a copy of the function with more attributes."""

    def without_attr(self, key: str) -> PrimFunc:
        """Return a copy of the function without an attribute."""

    def with_body(self, body: Statement) -> PrimFunc:
        """Return a copy of the function with a different body."""
