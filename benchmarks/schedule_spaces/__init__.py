"""Measures schedule spaces of VTA and the speed of its simulators: benchmarks of
docs/evidence/schedule-spaces.md."""
