"""A program that uses up memory, loops forever or dies, on request. See `test_faulty_targets`."""

from __future__ import annotations

import os
import signal
from typing import Any

from tilewright.core.child_process import Arrays, Header, arguments, serve


def answer(header: Header, arrays: Any) -> tuple[Header, Arrays]:
    if header.get("spin"):
        while True:
            pass
    if header.get("kill"):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"bytes": len(bytearray(int(header["megabytes"]) << 20))}, {}


if __name__ == "__main__":
    arguments()
    serve(answer)
