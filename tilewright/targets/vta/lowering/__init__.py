"""Lowering of VTA schedules to instructions and micro-ops."""
