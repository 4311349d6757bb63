"""List the TensorFlow Lite operators that are converted, and the reasons why others cannot be.

Operators that execute other graphs are listed in `control`.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.networks.tflite import (
    blocks,
    elementwise,
    fourier,
    indices,
    logic,
    lstm,
    moves,
    products,
    sizes,
    stablehlo,
    stablehlo_indices,
    windows,
)
from tilewright.networks.tflite.elementwise import Rule
from tilewright.networks.tflite.lstm import STATE

SUPPORTED: Mapping[str, Rule] = {
    **elementwise.RULES, **logic.RULES, **products.RULES, **moves.RULES, **blocks.RULES,
    **indices.RULES, **sizes.RULES, **fourier.RULES, **windows.RULES, **lstm.RULES,
    **stablehlo.RULES, **stablehlo_indices.RULES,
}  # fmt: skip
"""Conversion rule of each operator kind, by its name in the schema."""

RANDOM = "it draws random numbers, so its results cannot be compared"
TABLE = "it uses a hash table that the runtime keeps between runs"
TEXT = "it uses text or a hash function that ONNX does not have"
NOTHING = "the runtime does not implement it"

REFUSED: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "RNN",
            "SVDF",
            "UNIDIRECTIONAL_SEQUENCE_RNN",
            "UNIDIRECTIONAL_SEQUENCE_LSTM",
            "BIDIRECTIONAL_SEQUENCE_RNN",
            "BIDIRECTIONAL_SEQUENCE_LSTM",
            "VAR_HANDLE",
            "READ_VARIABLE",
            "ASSIGN_VARIABLE",
            "CALL_ONCE",
        ),
        STATE,
    ),
    **dict.fromkeys(
        (
            "RANDOM_STANDARD_NORMAL",
            "RANDOM_UNIFORM",
            "MULTINOMIAL",
        ),
        RANDOM,
    ),
    **dict.fromkeys(
        ("HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE"),
        TABLE,
    ),
    **dict.fromkeys(("LSH_PROJECTION", "SKIP_GRAM"), TEXT),
    **dict.fromkeys(("CALL", "CONCAT_EMBEDDINGS"), NOTHING),
    "DELEGATE": "it replaces operators that a delegate of the runtime executes",
    "STABLEHLO_RNG_BIT_GENERATOR": (
        "it computes random bits with an algorithm that ONNX does not have"
    ),
    "CUSTOM": "it is a custom operator, which only its author's runtime supports",
    "STABLEHLO_CUSTOM_CALL": "it calls a function that only its author's runtime supports",
    "PLACEHOLDER_FOR_GREATER_OP_CODES": "it is a placeholder for operators with codes above 127",
}
"""Reasons why operators cannot be converted, by the operator's name in the schema."""
