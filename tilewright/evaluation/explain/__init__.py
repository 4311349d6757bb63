"""Why a finished run chose as it did: its folder, read back, and its models, asked again.

folder → workloads (the models learn once more) → shapley → summary; run does it for all of a folder
"""
