"""Converts quantised networks to integers: extraction from Relax, CPU islands, the integer
reference.
"""
