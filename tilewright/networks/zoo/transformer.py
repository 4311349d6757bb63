"""Layers that transformers share: multi-head attention and the feed-forward network."""

from __future__ import annotations

import math

import numpy as np

from tilewright.networks.zoo.builder import Builder


def attention(net: Builder, x: str, name: str, heads: int) -> str:
    """Append multi-head attention and its output projection.

    Each head computes softmax(Q·Kᵀ / √size)·V (Vaswani et al., arXiv 1706.03762, section 3.2).

    Args:
        net: builder of the graph.
        x: name of the input, of shape (batch, tokens, features).
        name: name of the layer.
        heads: number of attention heads.

    Returns:
        The name of the output, which has the shape of the input.
    """
    batch, tokens, features = net.shapes[x]
    size = features // heads
    orders = {"query": (0, 2, 1, 3), "key": (0, 2, 3, 1), "value": (0, 2, 1, 3)}
    query, key, value = (
        _heads(net, net.linear(x, f"{name}.{role}", features), f"{name}.{role}", heads, order)
        for role, order in orders.items()
    )
    scale = net.constant("attention.scale", np.float32(1 / math.sqrt(size)))
    scores = net.multiply(net.matmul(query, key, f"{name}.scores"), scale, f"{name}.scale")
    chances = net.softmax(scores, f"{name}.softmax")
    y = net.matmul(chances, value, f"{name}.context")
    y = net.transpose(y, f"{name}.context.transpose", (0, 2, 1, 3))
    y = net.reshape(y, f"{name}.context.reshape", (batch, tokens, features))
    return net.linear(y, f"{name}.output", features)


def feed_forward(net: Builder, x: str, name: str, hidden: int) -> str:
    """Append two dense layers with a GELU in between, applied to each token.

    Args:
        net: builder of the graph.
        x: name of the input, of shape (batch, tokens, features).
        name: name of the layer.
        hidden: number of features between the two dense layers.

    Returns:
        The name of the output, which has the shape of the input.
    """
    y = net.gelu(net.linear(x, f"{name}.fc1", hidden), f"{name}.gelu")
    return net.linear(y, f"{name}.fc2", net.shapes[x][-1])


def _heads(net: Builder, x: str, name: str, heads: int, order: tuple[int, ...]) -> str:
    """Split the features of each token among attention heads.

    Args:
        net: builder of the graph.
        x: name of the input, of shape (batch, tokens, features).
        name: name of the layer.
        heads: number of attention heads.
        order: permutation of the axes (batch, tokens, heads, size) of the result.

    Returns:
        The name of the output.
    """
    batch, tokens, features = net.shapes[x]
    y = net.reshape(x, f"{name}.reshape", (batch, tokens, heads, features // heads))
    return net.transpose(y, f"{name}.transpose", order)
