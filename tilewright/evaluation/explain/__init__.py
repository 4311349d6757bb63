"""Explains the choices of a finished run from its folder, by training its models again.

The stages are: finished_run → refitted_models (`explain_run`) → figures → recommendations
"""
