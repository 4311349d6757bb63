"""Defines the commands: their options, and the order of their work. `register` adds them."""
