"""Derives what follows the sums of an operator, for each kind of hardware and of numbers."""
