"""Options of the tuners `ml2tuner`, `default` and `default-blind`."""

from __future__ import annotations

from pydantic import Field

from tilewright.search.registry import Options


class ML2TunerOptions(Options):
    """Options of `ml2tuner`, `default` and `default-blind`.

    Most defaults were chosen on the layers C4, C5, C7, C8, C9 and C10 of ResNet-18. `risk` was
    chosen on recorded tables of measurements. `believed`, `asked` and `warm_alpha` were chosen on
    layers of ResNet-50, MobileNet-v3 and Inception-v3 on the machines vta-de10 and large. An
    ablation can be repeated with `benchmarks.tuners.sample_efficiency --tuners
    ml2tuner:alpha=7,ml2tuner`.
    """

    alpha: float = Field(
        3.0, ge=0, description="configs lowered in addition to the batch, per trial (α)"
    )
    first: int | None = Field(
        None, ge=1,
        description="configs lowered before the first trial: 16 with estimates, 96 without (None)",
    )  # fmt: skip
    spread: bool = Field(
        True, description="spread the first configs over the space; otherwise draw them at random"
    )
    batch: int = Field(
        2,
        ge=1,
        description="largest number of trials per round, whatever the batch size of the run",
    )
    looking: float = Field(
        1.0, ge=0,
        description="time limit for lowering additional configs, as a multiple of the time "
            "that the batch takes",
    )  # fmt: skip
    pool: int = Field(
        16384,
        ge=64,
        description="number of candidates to score where a space is too large to score completely",
    )
    use_v: bool = Field(True, description="weight candidates by their probability of being valid")
    use_a: bool = Field(True, description="choose among compiled configs by their hidden features")
    share: bool = Field(
        True, description="train V and A also on the workloads that the run has tuned before"
    )
    estimates: bool = Field(
        False, description="use closed-form estimates at the start, if the target provides them"
    )
    risk: float = Field(
        0.5, ge=0, description="weight of the probability of being valid where compiling is slow"
    )
    trust: float = Field(
        0.5, gt=0, lt=1, description="fraction of a first batch that the estimates choose"
    )
    warm_alpha: float = Field(
        23.0,
        ge=0,
        description="the same as alpha where a transferred model ranks the compiled programs",
    )
    believed: float = Field(
        0.75, gt=0, lt=1, description="fraction of a first batch that a transferred model chooses"
    )
    screen: int = Field(
        16384,
        ge=64,
        description="number of configs to estimate where a space is too large to estimate "
        "completely",
    )
    passed: int = Field(2048, ge=64, description="number of best screened configs that are scored")
    asked: int = Field(
        4096,
        ge=64,
        description="number of configs that a transferred model predicts where a space is larger",
    )
