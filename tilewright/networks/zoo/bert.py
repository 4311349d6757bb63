"""BERT-tiny for classification, google/bert_uncased_L-2_H-128_A-2 (Turc et al., arXiv 1908.08962).

The only input holds the int64 token IDs of one sequence, each below `VOCABULARY`. The sequence has
the full length, so that no attention mask is needed. All tokens belong to the first segment.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tilewright.networks.zoo.builder import Builder
from tilewright.networks.zoo.transformer import attention, feed_forward

INPUT = (1, 128)
INPUT_NAME = "input_ids"
INPUT_TYPE = TensorProto.INT64
VOCABULARY, POSITIONS, SEGMENTS, CLASSES = 30522, 512, 2, 2
WIDTH, LAYERS, HEADS, HIDDEN = 128, 2, 2, 512
EPSILON = 1e-12  # for layer normalisation, as in BERT's published configuration


def bert_tiny(net: Builder) -> str:
    """Build BERT-tiny: two layers over 128 tokens, classification into two classes.

    The classifier reads the features of the first token.

    Args:
        net: builder of the graph, which already has the input.

    Returns:
        The name of the output.
    """
    x = _embeddings(net)
    for index in range(LAYERS):
        x = _layer(net, x, f"encoder.{index}")
    x = net.take(x, "first_token", index=0, axis=1)
    x = net.tanh(net.dense(x, "pooler", WIDTH), "pooler.tanh")
    return net.dense(x, "classifier", CLASSES)


def _embeddings(net: Builder) -> str:
    """Append the sum of the word, segment and position embeddings, and a LayerNorm.

    Args:
        net: builder of the graph.

    Returns:
        The name of the output, of shape (batch, tokens, features).
    """
    ids = net.shapes[net.input]
    segments = net.constant("segment_ids", np.zeros(ids, np.int64))
    positions = net.constant("position_ids", np.arange(ids[1], dtype=np.int64)[None])
    x = net.embedding(net.input, "embeddings.word", VOCABULARY, WIDTH)
    y = net.embedding(segments, "embeddings.segment", SEGMENTS, WIDTH)
    z = net.embedding(positions, "embeddings.position", POSITIONS, WIDTH)
    x = net.add(net.add(x, y, "embeddings.add_segment"), z, "embeddings.add_position")
    return net.layer_norm(x, "embeddings.norm", EPSILON)


def _layer(net: Builder, x: str, name: str) -> str:
    """Append a transformer layer that normalises after each residual addition.

    Args:
        net: builder of the graph.
        x: name of the input, of shape (batch, tokens, features).
        name: name of the layer.

    Returns:
        The name of the output.
    """
    y = net.add(attention(net, x, f"{name}.attention", HEADS), x, f"{name}.add1")
    x = net.layer_norm(y, f"{name}.norm1", EPSILON)
    y = net.add(feed_forward(net, x, f"{name}.ffn", HIDDEN), x, f"{name}.add2")
    return net.layer_norm(y, f"{name}.norm2", EPSILON)
