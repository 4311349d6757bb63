"""Transfer models: cost models trained on some hardware and workloads and used on others."""
