"""Registers the tuners: one explorer a file, registered by importing it."""
