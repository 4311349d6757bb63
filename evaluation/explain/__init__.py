"""Why a finished run chose as it did: its folder, read back, and its models, asked again.

folder → workloads (the models learn once more, watched by compare.trace) → shapley → plots, page
"""
