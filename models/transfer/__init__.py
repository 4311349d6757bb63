"""Transfers cost models: trained on some hardware and workloads, asked about others."""
