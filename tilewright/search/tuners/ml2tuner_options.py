"""Options of the tuners `ml2tuner`, `default` and `default-blind`."""

from __future__ import annotations

from pydantic import Field

from tilewright.search.registry import Options


class ML2TunerOptions(Options):
    """Options of `ml2tuner`, `default` and `default-blind`.

    The defaults were chosen on ResNet-18's layers C4, C5, C7, C8, C9 and C10. `risk` was chosen on
    the recorded tables. `believed`, `asked` and `warm_alpha` were chosen on layers of ResNet-50,
    MobileNet-v3 and Inception-v3 on vta-de10 and large.
    `benchmarks.tuners.sample_efficiency --tuners ml2tuner:alpha=7,ml2tuner` repeats an ablation.
    """

    alpha: float = Field(3.0, ge=0, description="configs lowered beyond the batch, per trial (α)")
    first: int | None = Field(
        None, ge=1,
        description="configs lowered before the first trial: 16 with estimates, 96 without (None)",
    )  # fmt: skip
    batch: int = Field(
        2, ge=1, description="trials of a round at most, whatever the batch of the run"
    )
    looking: float = Field(
        1.0, ge=0,
        description="time for lowering beyond a batch at most, as a multiple of the batch's",
    )  # fmt: skip
    pool: int = Field(16384, ge=64, description="candidates scored where a space is too large")
    use_v: bool = Field(True, description="weigh candidates by the chance of being valid")
    use_a: bool = Field(True, description="choose among compiled configs by hidden features")
    share: bool = Field(
        True, description="learn V and A from the workloads of the run that were tuned before"
    )
    estimates: bool = Field(False, description="start from closed-form estimates, if there are any")
    risk: float = Field(
        0.5, ge=0, description="weight of the chance of being valid where compiles are slow"
    )
    trust: float = Field(
        0.5, gt=0, lt=1, description="part of a first batch that the estimates name"
    )
    warm_alpha: float = Field(
        23.0, ge=0, description="the same as alpha, where a transferred model judges programs"
    )
    believed: float = Field(
        0.75, gt=0, lt=1, description="part of a first batch that a transferred model names"
    )
    screen: int = Field(16384, ge=64, description="configs estimated where a space is too large")
    passed: int = Field(2048, ge=64, description="of those screened, the best that are scored")
    asked: int = Field(
        4096, ge=64, description="configs a transferred model is asked about where there are more"
    )
