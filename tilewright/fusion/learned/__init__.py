"""Learns from labelled graphs: models of their cycles, and a policy that labels."""
