"""Lowering of schedules to command streams, in one of two forms.

The loop form uses LOOP_WS, the hardware's loop over a matrix product. The nest form consists of
single loads, multiplications and stores, and supports every workload.
"""
