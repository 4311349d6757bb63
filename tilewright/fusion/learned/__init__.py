"""Learns from labelled graphs: models of what they take, and a policy that labels."""
