"""Lowers schedules to command streams, in one of two forms.

The loop form uses the hardware's loop over a matrix product, LOOP_WS. The nest form consists of
single loads, multiplications and stores, and supports every workload.
"""
