"""Explains why a finished run chose as it did: reads its folder and refits its models.

folder → workloads (the models learn once more) → shapley → summary; run does it for all of a folder
"""
