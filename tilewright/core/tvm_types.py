"""Names the values of TVM that this package works with, for annotations.

TVM's package has no `py.typed`, so a type checker takes all that it gives for `Any`. What kernels
compute with is therefore described here, as far as this package uses it:

    Expression, TirBuffer, Tensor, PrimFunc    protocols that a type checker compares with their use
    the others                                 TVM's own classes, which name what a value is

A module needs none of TVM to import this one.
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
else:  # only annotations use these names, and some of those are built when a module is loaded
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
"""What comparing expressions gives: a boolean expression, or a `bool` of two Python numbers."""
OnnxAttributes: TypeAlias = Mapping[str, Any]
"""The attributes of an ONNX operator by name, as TVM's importer reads them: numbers, bytes, lists
of these, and tensors."""


Operand: TypeAlias = Any
"""The other operand of an expression: a number or an expression. It is no union, since `int` has to
be an `Expression`, too, and takes other operands than TVM does."""


class Expression(Protocol):
    """A number in TensorIR, scalar or vector: an expression of TVM, or a Python number, which TVM
    makes a constant of. `a + b` of two of them writes the addition; nothing is computed."""

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
"""Writes the combination of two expressions: a function, or a class such as `tirx.Max`."""
Place: TypeAlias = Sequence[Expression]
"""The indices of a number in a buffer or a tensor, one for each axis."""


class _Indexed(Protocol):
    """What buffers and tensors have in common."""

    @property
    def shape(self) -> Sequence[SupportsInt]:
        """The size of each axis."""

    @property
    def dtype(self) -> str:
        """The element type."""

    def __getitem__(self, place: Any, /) -> Expression:
        """Return the number at a place."""


class TirBuffer(_Indexed, Protocol):
    """Memory that a function of TensorIR reads and writes: a parameter, or an allocation."""

    @property
    def name(self) -> str:
        """Its name in TVM's text."""

    @property
    def data(self) -> Expression:
        """The pointer to its memory."""

    @property
    def ty(self) -> Any:
        """Its type, with the shape."""

    def vload(self, begin: Place, dtype: str) -> Expression:
        """Return a vector of the type `dtype`, such as `float32x8`, from a place on."""

    def access_ptr(self, access_mask: str, *, offset: Expression = 0) -> Expression:
        """Return a pointer to read ("r") or write ("w") from an offset on."""

    def same_as(self, other: object) -> bool:
        """Return whether two names stand for the same buffer."""


class Tensor(_Indexed, Protocol):
    """A tensor expression (`tvm.te`): its values by an expression of their place. Arithmetic writes
    a further tensor, value by value."""

    @property
    def ndim(self) -> int:
        """The number of axes."""

    def __add__(self, other: Operand, /) -> Tensor: ...
    def __radd__(self, other: Operand, /) -> Tensor: ...
    def __mul__(self, other: Operand, /) -> Tensor: ...
    def __rmul__(self, other: Operand, /) -> Tensor: ...


class PrimFunc(Protocol):
    """A function of TensorIR. Its parameters are buffers; all but the last are read."""

    @property
    def params(self) -> Sequence[TirBuffer]:
        """The parameters, in order."""

    @property
    def body(self) -> Statement:
        """What it does."""

    @property
    def ret_type(self) -> Any:
        """The type of its result: none."""

    @property
    def attrs(self) -> Mapping[str, Any] | None:
        """Its attributes by name."""

    def with_attr(self, key: str, value: object) -> PrimFunc:
        """Return the function with a further attribute."""

    def with_attrs(self, attributes: Any) -> PrimFunc:
        """Return the function with further attributes."""

    def without_attr(self, key: str) -> PrimFunc:
        """Return the function without an attribute."""

    def with_body(self, body: Statement) -> PrimFunc:
        """Return the function with another body."""
