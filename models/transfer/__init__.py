"""Transfer models: cost models that are trained on some hardware and workloads and used on
others."""
