"""Find which operators of a network may run together on an accelerator, and apply such a choice.

`choices` lists everything that may or may not be fused, and `apply_labels` builds the network for
one yes/no label per choice. Every labelling computes bit-identical results. Both expect a network
whose averages of concatenated tensors were split by `in_parts`.
"""

from tilewright.networks.fusion.apply_fusion import apply_labels, choices
from tilewright.networks.fusion.averages import in_parts
from tilewright.networks.fusion.candidates import Choices, FusionChoice, Kind, Refused

__all__ = ["Choices", "FusionChoice", "Kind", "Refused", "apply_labels", "choices", "in_parts"]
