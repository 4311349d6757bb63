"""Target kind `board`: builds board targets from names such as `board:NAME`.

Heavy modules are imported only when a target is built.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tilewright.core.files import Json
from tilewright.targets.base import Target
from tilewright.targets.registry import TargetError, TargetKind, rebuild

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


def check_name(name: str) -> None:
    """Raise `TargetError` if the text is not a valid name of a board."""
    if not _NAME.fullmatch(name):
        raise TargetError(
            f"board:{name} is not a valid name: board names have 1 to 60 letters, digits, "
            "dots, dashes and underscores; 'tilewright board list' lists the boards of a "
            "cluster"
        )


def _make(text: str, space: str) -> Target:
    check_name(text)
    raise TargetError(
        f"board:{text} is a board of a cluster; give the address of the cluster's scheduler: "
        "--cluster tls://HOST:PORT (commands other than 'tune' measure on 'vta-pynq' and "
        "other simulated machines)"
    )


def _make_on(text: str, space: str, cluster: str) -> Target:
    from tilewright.targets.board.target import board_on

    check_name(text)
    return board_on(cluster, text, space)


def _rebuild(specification: Mapping[str, Json], space: str) -> Target:
    """Build a simulated target of a board's machine from the JSON that a run stored about it.

    The JSON describes the machine but not the board, so the board itself is not used.

    Args:
        specification: specification of the machine.
        space: name of the schedule space.
    """
    return rebuild("vta", specification, space)


KIND = TargetKind(
    name="board",
    summary="a VTA board that a worker of a cluster offers: board:NAME",
    make=_make,
    make_on=_make_on,
    spaces=("extended", "template", "stock"),
    check=check_name,
    rebuild=_rebuild,
)
