"""Decides what runs together on the accelerator: labels of a network's graph, by what whole
networks take.

`problem` says what may be fused and applies labels, `schedules` tunes the workloads that they make,
`evaluator` times labelled networks exactly. `learned` searches, `run` decides for a tuned folder.
"""
