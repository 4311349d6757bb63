"""Breaks the compiling process: the knob value `dies` = 1 makes it die, and 2 makes it hang."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.core.child_process import Arrays, Header, arguments, serve
from tilewright.core.files import as_object
from tilewright.targets.cpu.hidden_features import COLUMNS


def _answer(header: Header, arrays: dict[str, NDArray[Any]]) -> tuple[Header, Arrays]:
    values = as_object(header.get("values", {}))
    if values.get("dies") == 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    if values.get("dies") == 2:
        time.sleep(600)
    made = {"library": np.ones(1, np.uint8), "hidden": np.zeros(len(COLUMNS))}
    return {"failure": "", "reason": ""}, made


if __name__ == "__main__":
    arguments()
    serve(_answer)
