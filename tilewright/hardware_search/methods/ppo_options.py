"""Defines the options of a PPO agent that walks through points, for the rivals that use one."""

from __future__ import annotations

from pydantic import Field

from tilewright.hardware_search.methods.baseline_loop import PublishedOptions
from tilewright.search.ppo import PPOOptions


class WalkingOptions(PublishedOptions, PPOOptions):
    """Those of CHAMELEON, which CHAMELEON's own code or paper says, but for what is said here."""

    starts: int = Field(128, ge=1, description="points that walks begin at")
    steps: int = Field(
        100, ge=1, description="steps of an episode at most (paper: 500; here a step asks the cost "
        "model about every layer of the networks)",
    )  # fmt: skip
    episodes: int = Field(1, ge=1, description="episodes between two fits (open in the papers)")
