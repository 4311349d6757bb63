"""Processes beside a command, the home folder, addresses."""
