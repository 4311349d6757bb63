"""Lists element-wise steps on the accumulators, a file each but for the basic ones.

A step that is composed of ALU operations needs nothing else anywhere.
"""
