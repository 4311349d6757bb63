"""Explains why a finished run chose as it did: reads its folder and refits its models.

finished_run → refitted_models (they learn once more, `explain_run`) → figures → recommendations
"""
