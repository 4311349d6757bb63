"""VTAs on boards that sit elsewhere: a worker beside each measures on it (`targets.cluster`).

`target` is the side of the command, `single_layer_programs` what travels, `board_runner` what runs
beside the board, through the C runtime (`targets.vta.board.runtime`) and `measure.c`;
`board_worker` offers that. What runs there loads no numba.
"""

from __future__ import annotations

INPUT, EXPECTED = "input.bin", "expected.bin"
"""Beside the files of the artifact (`targets.vta.board.files.FILES`)."""
MEASURE, ROWS, STATUS = "measure", "rows", "status"
"""Of a call's header: its name, and its programs; of what a worker says of itself: what became of
programs."""
