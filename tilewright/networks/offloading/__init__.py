"""Offloading: decides which operators run on an accelerator, and reports the decisions."""
