"""Element-wise steps on the accumulators, a file each but for the basic ones, and the list of all
of them. A step that is composed of ALU operations needs nothing else anywhere."""
