"""Arrays that compiled code passes on without counting references.

Numba counts references, atomically, whenever one compiled function hands an array to another. Where
a helper does no more than write one instruction, the counting takes two thirds of the time.
"""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.core.types.containers import BaseTuple
from numba.extending import intrinsic
from numba.np.arrayobj import make_array


@intrinsic
def borrowed(_: Any, lent: types.Type) -> Any:
    """The same array, or tuple with arrays in it, without an owner: for the arguments of a call,
    while the caller keeps the owner."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _without_owner(context, builder, signature.return_type, arguments[0])

    return lent(lent), generate


def _without_owner(context: Any, builder: Any, kind: types.Type, value: Any) -> Any:
    if isinstance(kind, types.Array):
        view = make_array(kind)(context, builder, value=value)
        view.meminfo = view.meminfo.type(None)
        view.parent = view.parent.type(None)
        return view._getvalue()
    if isinstance(kind, BaseTuple):
        items = cgutils.unpack_tuple(builder, value)
        kinds = kind.types
        return context.make_tuple(
            builder, kind,
            [_without_owner(context, builder, k, v) for k, v in zip(kinds, items, strict=True)],
        )  # fmt: skip
    return value
