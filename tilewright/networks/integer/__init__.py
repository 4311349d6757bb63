"""Convert quantised networks to integer layers: extraction from Relax, CPU islands, reference."""
