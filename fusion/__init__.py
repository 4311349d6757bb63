"""What runs together on the accelerator: the labels of a network's graph, decided by what whole
networks take.

`problem` says what may be fused and what comes of labels, `schedules` tunes the workloads that labels
make, `evaluator` times labelled networks exactly, `methods` search, `run` decides for a tuned folder.
"""
