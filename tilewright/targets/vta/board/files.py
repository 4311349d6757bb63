"""Names the four files that a board loads, and reads what they say of its machine."""

NETWORK, INSTRUCTIONS, UOPS, CONSTANTS = (
    "network.bin", "instructions.bin", "uops.bin", "constants.bin",
)  # fmt: skip
FILES = (NETWORK, INSTRUCTIONS, UOPS, CONSTANTS)
SPEC_FIELDS = (
    "log_inp_width", "log_wgt_width", "log_acc_width", "log_batch", "log_block_in",
    "log_block_out", "log_uop_width", "log_uop_buff_size", "log_inp_buff_size",
    "log_wgt_buff_size", "log_acc_buff_size",
)  # fmt: skip
"""The keys of `vta_config.json` that they state, in the order of the header."""
