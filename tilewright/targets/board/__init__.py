"""Measures on VTAs on boards elsewhere, by a Dask worker beside each (`targets.cluster`).

`target` is the side of the command, `single_layer_programs` what travels, `board_runner` what runs
beside the board, through the C runtime (`targets.vta.board.runtime`) and `measure.c`.
`board_worker` offers that. What runs there loads no numba.
"""

INPUT, EXPECTED = "input.bin", "expected.bin"
"""Beside the files of the artifact (`targets.vta.board.runtime.FILES`)."""
