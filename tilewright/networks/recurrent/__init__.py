"""Unrolls LSTM, GRU and RNN over a known number of steps: products, activations and sums."""
