"""Finds what of a network may run together on an accelerator, and rewrites the network so.

`choices` finds everything that may be fused or not, `fused` makes the network of one answer to
each. What it computes is the same, bit by bit, whatever is chosen. Both are about a network whose
averages of what lies side by side are `in_parts`.
"""

from tilewright.networks.fusion.apply_fusion import choices, fused
from tilewright.networks.fusion.averages import in_parts
from tilewright.networks.fusion.candidates import Choices, FusionChoice, Kind, Refused

__all__ = ["Choices", "FusionChoice", "Kind", "Refused", "choices", "fused", "in_parts"]
