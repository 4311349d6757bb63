"""Vision transformer ViT-Ti/16 (Dosovitskiy et al., arXiv 2010.11929).

Its sizes are taken from Touvron et al., arXiv 2012.12877, table 1.
"""

from __future__ import annotations

from tilewright.networks.zoo.builder import Builder
from tilewright.networks.zoo.transformer import attention, feed_forward

INPUT = (1, 3, 224, 224)
PATCH, WIDTH, LAYERS, HEADS, HIDDEN = 16, 192, 12, 3, 768
EPSILON = 1e-6


def vit_tiny(net: Builder) -> str:
    """Build ViT-Ti/16: twelve layers over 14×14 patches and a class token, 1000 classes.

    Args:
        net: builder of the graph, which already has the input.

    Returns:
        The name of the output.
    """
    x = net.conv(net.input, "patch_embed", WIDTH, kernel=PATCH, stride=PATCH, bias=True)
    batch, _, rows, columns = net.shapes[x]
    x = net.reshape(x, "patch_embed.flatten", (batch, WIDTH, rows * columns))
    x = net.transpose(x, "patch_embed.transpose", (0, 2, 1))
    x = net.join([net.table("cls_token", (batch, 1, WIDTH)), x], "tokens", axis=1)
    x = net.add(x, net.table("pos_embed", net.shapes[x]), "pos_embed.add")
    for index in range(LAYERS):
        x = _layer(net, x, f"blocks.{index}")
    x = net.take(net.layer_norm(x, "norm", EPSILON), "class_token", index=0, axis=1)
    return net.dense(x, "head", 1000)


def _layer(net: Builder, x: str, name: str) -> str:
    """Append a transformer layer that normalises before each sublayer.

    Args:
        net: builder of the graph.
        x: name of the input, of shape (batch, tokens, features).
        name: name of the layer.

    Returns:
        The name of the output.
    """
    y = attention(net, net.layer_norm(x, f"{name}.norm1", EPSILON), f"{name}.attn", HEADS)
    x = net.add(x, y, f"{name}.add1")
    y = feed_forward(net, net.layer_norm(x, f"{name}.norm2", EPSILON), f"{name}.mlp", HIDDEN)
    return net.add(x, y, f"{name}.add2")
