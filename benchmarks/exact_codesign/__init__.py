"""Solves hardware and schedules of small networks exactly: what co-design is compared with."""
