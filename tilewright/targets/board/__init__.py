"""Measures VTA programs on remote boards, through Dask workers next to the boards.

`target` is the client side, `single_layer_programs` defines what is sent, and `board_runner` runs
it next to the board with the C runtime (`targets.vta.board.runtime`) and `measure.c`.
`board_worker` offers the board to a cluster. The modules that run next to the board do not import
numba.
"""

INPUT, EXPECTED = "input.bin", "expected.bin"
"""Names of the files with the input and the expected output of a program. They are stored next to
the artifact's files (`targets.vta.board.runtime.FILES`)."""
