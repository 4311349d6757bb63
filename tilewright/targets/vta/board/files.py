"""Names the four files that a board loads."""

NETWORK, INSTRUCTIONS, UOPS, CONSTANTS = (
    "network.bin", "instructions.bin", "uops.bin", "constants.bin",
)  # fmt: skip
FILES = (NETWORK, INSTRUCTIONS, UOPS, CONSTANTS)
