"""The numbers of an agent that walks through points by PPO, for the rivals that learn to."""

from __future__ import annotations

from pydantic import Field

from tilewright.hardware_search.methods.baseline_loop import PublishedOptions


class WalkingOptions(PublishedOptions):
    """Those of CHAMELEON, which CHAMELEON's own code or paper says, but for what is said here."""

    starts: int = Field(128, ge=1, description="points that walks begin at")
    steps: int = Field(
        100, ge=1, description="steps of an episode at most (paper: 500; here a step asks the cost "
        "model about every layer of the networks)",
    )  # fmt: skip
    episodes: int = Field(1, ge=1, description="episodes between two fits (open in the papers)")
    learned: int = Field(
        1024, ge=2, description="steps of an episode, drawn at random, to learn from (open there)"
    )
    held: float = Field(0.75, gt=0, description="share of knobs not moving that ends a walk")
    clip: float = Field(0.2, gt=0, description="PPO's clip of the probability ratio")
    discount: float = Field(0.9, ge=0, le=1, description="γ")
    trace: float = Field(0.99, ge=0, le=1, description="λ of the advantage estimates")
    entropy: float = Field(0.1, ge=0, description="weight of the policies' entropy")
    value: float = Field(1.0, ge=0, description="weight of the critic's error")
    learning_rate: float = Field(1e-3, gt=0, description="of Adam")
    temperature: float = Field(1.0, gt=0, description="of the softmax over down, stay, up")
    epochs: int = Field(3, ge=1, description="passes over the steps of an episode")
    minibatch: int = Field(32, ge=1, description="steps an update")
