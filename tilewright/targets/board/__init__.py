"""Measures VTA programs on remote boards, through Dask workers on the machines of the boards.

- `target` provides the target, which runs in the process of the command.
- `single_layer_programs` creates the files that are sent to a board.
- `board_runner` runs programs on the board, with the C runtime (`targets.vta.board.runtime`) and
  `measure.c`.
- `board_worker` offers the board to a cluster.

The modules that run on a board's machine do not import numba.
"""

INPUT, EXPECTED = "input.bin", "expected.bin"
"""Names of the files that hold the input of a program and its expected output. They are stored next
to the artifact's files (`targets.vta.board.runtime.FILES`)."""
