"""LSTM, GRU and RNN: a sequence of known length becomes products, activations and sums."""
