"""The tuners: one explorer per module, which is registered when the module is imported."""
