"""The tuners. Each module registers one or more tuners when it is imported."""
