"""Cost models that carry over: trained on some hardware and workloads, asked about others."""
