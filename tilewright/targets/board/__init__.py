"""VTAs on boards that sit elsewhere: a worker of a Dask cluster beside each measures on it.

`target` is the side of the command, `programs` what travels, `bench` what runs beside the board,
through the C runtime (`targets.vta.board.runtime`) and `measure.c`; `serve` makes a worker of that.
What runs there loads no numba.
"""

INPUT, EXPECTED = "input.bin", "expected.bin"
"""Beside the files of the artifact (`targets.vta.board.files.FILES`)."""
