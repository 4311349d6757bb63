"""Writes the command that a run's options stand for: a record has it, so that a reader can repeat
it.
"""

from __future__ import annotations

import shlex

from tilewright.core.working_folder import as_typed
from tilewright.hardware_search.options import CodesignOptions
from tilewright.tuning.cli_command import words_of

_FLAGS = {"method_options": "--option", "bounds": "--bound"}
"""Fields whose option has another name than they; they are given once an entry."""


def command_of(options: CodesignOptions) -> str:
    """`tilewright codesign …` with all that is not as usual. To start over is no part of it."""
    words = ["tilewright", "codesign"]
    usual = options.model_copy(update={"out": ""})
    if as_typed(options.out) == str(usual.folder):
        options = usual
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        if name == "fresh" or (
            not field.is_required() and value == field.get_default(call_default_factory=True)
        ):
            continue
        if name == "bounds":
            value = {knob: f"{low}:{high}" for knob, (low, high) in value.items()}
        words += words_of(_FLAGS.get(name, f"--{name}"), value)
    return shlex.join(words)
