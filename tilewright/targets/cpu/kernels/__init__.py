"""One file a way to compute an operator: knobs, TensorIR, and the schedule that the knobs say."""
