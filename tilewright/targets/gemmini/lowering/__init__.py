"""Lowers schedules to command streams.

The loop form uses the hardware's matrix-product loop; the nest form can run any workload.
"""
