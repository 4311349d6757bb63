"""Quantised networks in integers: extraction from Relax, CPU islands, the integer reference."""
