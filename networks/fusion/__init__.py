"""What of a network may run together on an accelerator, and the network as it is then.

`choices` finds everything that may be fused or not, `fused` makes the network of one answer to
each. What it computes is the same, bit by bit, whatever is chosen. Both are about a network whose
averages of what lies side by side are `in_parts`.
"""

from networks.fusion.averages import in_parts
from networks.fusion.choices import Choice, Choices, Kind, Refused
from networks.fusion.labelled import choices, fused

__all__ = ["Choice", "Choices", "Kind", "Refused", "choices", "fused", "in_parts"]
