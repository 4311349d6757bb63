"""Why a finished run chose as it did: its folder, read back, and its models, asked again.

folder → trace (the models learn once more, watched) → shapley → workloads → plots, page
"""
