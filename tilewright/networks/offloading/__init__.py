"""Offloading: decides which parts of a network run on an accelerator, and reports the decisions."""
