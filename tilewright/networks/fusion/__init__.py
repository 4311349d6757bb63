"""List the operators of a quantised network that can be fused, and apply a selection of fusions.

`choices` lists all possible fusions. `apply_labels` builds the network for a labelling, which holds
one bool per possible fusion: whether it is applied. The results of the network are bit-identical
for all labellings. Both functions split global average pools over concatenated tensors into one
average pool per tensor, with `in_parts`.
"""

from tilewright.networks.fusion.apply_fusion import apply_labels, choices
from tilewright.networks.fusion.averages import in_parts
from tilewright.networks.fusion.candidates import Choices, FusionChoice, Kind, Refused

__all__ = ["Choices", "FusionChoice", "Kind", "Refused", "apply_labels", "choices", "in_parts"]
