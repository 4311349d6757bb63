"""Convert quantised networks to integer graphs: accelerator layers and CPU islands."""
