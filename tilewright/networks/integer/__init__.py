"""Convert quantised networks to integer graphs of accelerator layers and CPU islands."""
