"""Implements operators, a file a kernel: knobs, TensorIR, and the schedule that knobs select."""
