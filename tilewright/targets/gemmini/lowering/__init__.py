"""Lowers schedules to streams of commands: the loop form, and the nest form for any workload."""
