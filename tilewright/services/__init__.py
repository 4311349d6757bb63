"""Runs processes beside a command, and manages the workspace and addresses."""
