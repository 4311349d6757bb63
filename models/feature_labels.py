"""Describes visible features in words, for people who read which of them a model used."""

from __future__ import annotations

_KNOBS = {  # of the spaces in this package; any other knob is called by its name
    "tile_b": "images of a tile",
    "tile_h": "output rows of a tile",
    "tile_w": "output columns of a tile",
    "tile_co": "output channel blocks of a tile",
    "tile_ci": "input channel blocks of a step",
    "oc_nthread": "threads over output channels",
    "h_nthread": "threads over rows",
    "inp_slots": "input tiles held at once",
    "wgt_slots": "weight tiles held at once",
    "acc_slots": "output tiles held at once",
    "order": "which of the loops over inputs and weights is the outer one",
    "head": "by how much the first tile is shorter",
    "ramp": "first steps whose weights come in growing parts",
    "tail": "shrinking parts of the last tile",
    "nthread": "threads",
}
_SETS = {"inp": "input", "wgt": "weight", "out": "output"}
_SHAPES = (
    ("log2_parts_", "parts that {} cut the layer into (log2)"),
    ("log2_", "{} (log2)"),
    ("waste_", "share of work beyond the layer's edge, by {}"),
    ("one_", "1 where there is no more than one of: {}"),
    ("whole_", "1 where {} are not cut at all"),
)
"""How a column's name begins, and what it says of the knob behind."""


def words(name: str) -> str:
    """What a column of `models.features` counts."""
    if name == "log2_tiles":
        return "tiles of the layer (log2)"
    if name.endswith("_volume_times_tiles"):
        return f"{_volume(name.removesuffix('_volume_times_tiles'))}, times the tiles (log2)"
    if name.endswith("_volume"):
        return f"{_volume(name.removesuffix('_volume'))} (log2)"
    if name.startswith("rest_"):
        tile, thread = _rest(name.removeprefix("rest_"))
        return f"1 where the parts by {_knob(tile)} are no multiple of the {_knob(thread)}"
    if "_is_" in name:
        knob, _, value = name.rpartition("_is_")
        return f"1 where {_knob(knob)}: {value}"
    for start, text in _SHAPES:
        if name.startswith(start):
            return text.format(_knob(name.removeprefix(start)))
    return _knob(name)


def _volume(name: str) -> str:
    kind = name.removeprefix("log2_")
    return f"{_SETS.get(kind, kind)} elements in flight, all threads and slots"


def _rest(text: str) -> tuple[str, str]:
    """`tile_h_oc_nthread` in two: of a tile's axes none has a `_` in its name."""
    axis, _, thread = text.removeprefix("tile_").partition("_")
    return f"tile_{axis}", thread


def _knob(name: str) -> str:
    return _KNOBS.get(name, f"knob {name}")
