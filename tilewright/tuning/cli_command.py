"""Writes the command that a run's options stand for: a record has it, so that a reader can repeat
it.
"""

from __future__ import annotations

import shlex

from tilewright.core.working_folder import as_typed
from tilewright.tuning.options import DEFAULTS, TuningOptions

_FLAGS = {"tuner_options": "--option", "input_shapes": "--input-shape"}
"""Fields whose option has another name than they; they are given once an entry."""


def command_of(options: TuningOptions) -> str:
    """`tilewright tune …` with all that is not as usual, paths as they were typed. To start over is
    no part of it."""
    words = ["tilewright", "tune"]
    if options.model:
        words.append(as_typed(options.model))
    usual = str(options.model_copy(update={"out": ""}).folder)
    if as_typed(options.out) == usual:
        options = options.model_copy(update={"out": ""})
    for name in type(options).model_fields:
        value = getattr(options, name)
        if name in ("model", "fresh") or value == getattr(DEFAULTS, name):
            continue
        words += words_of(_FLAGS.get(name, f"--{name.replace('_', '-')}"), value)
    return shlex.join(words)


def words_of(flag: str, value: object) -> list[str]:
    """An option as it is typed, once an entry if its value is a table."""
    if isinstance(value, dict):
        pairs = [(name, "x".join(map(str, each)) if isinstance(each, tuple) else str(each))
                 for name, each in value.items()]  # fmt: skip
        return [word for name, text in pairs for word in (flag, f"{name}={text}")]
    if value is True:
        return [flag]
    text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
    return [flag, as_typed(text)]
