"""Lists the builtin operators of TensorFlow Lite that have no equivalent in ONNX, with reasons."""

from __future__ import annotations

from collections.abc import Mapping

STATE = "it keeps state from run to run, and ONNX has no variables"
RANDOM = "it draws random numbers, so that its results cannot be compared"
TABLE = "it uses a hash table that the runtime keeps from run to run"
TEXT = "it computes on text or by a hash function that ONNX does not have"
NOTHING = "the runtime has no implementation of it"

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
    "DELEGATE": "it stands for operators that a delegate of the runtime replaced",
    "STABLEHLO_RNG_BIT_GENERATOR": (
        "it computes random bits by an algorithm that ONNX does not have"
    ),
    "CUSTOM": "it is a custom operator, which only its author's runtime knows",
    "STABLEHLO_CUSTOM_CALL": "it calls a function by name that only its author's runtime knows",
    "PLACEHOLDER_FOR_GREATER_OP_CODES": "it marks operators with a code above 127",
}
"""Why each kind of operator is refused, by the schema's word."""
