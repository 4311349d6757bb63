"""The commands, one module per group. A module declares the options and calls the work."""
