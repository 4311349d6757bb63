"""Lowers schedules to command streams: spaces, geometry, the two forms of a program."""
