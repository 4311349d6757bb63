"""One file a way to compute an operator: its knobs, its TensorIR, and the schedule that they say."""
