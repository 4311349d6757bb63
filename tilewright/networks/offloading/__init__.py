"""Says what of a network an accelerator gets: costs, decisions, workloads and the report on
them."""
