"""Options of the tuners `default` and `default-blind`."""

from __future__ import annotations

from pydantic import Field

from tilewright.search.registry import Options


class DefaultOptions(Options):
    """Options of `default` and `default-blind`.

    The defaults were chosen on the recorded tables and on the layers C4, C8 and C11 of the larger
    spaces. `first_alpha` was chosen on all sixteen layers of the extended space. `believed`,
    `asked` and `warm_alpha` were chosen on layers of ResNet-50, MobileNet-v3 and Inception-v3 on
    vta-de10 and large, `warm_alpha` also on evta-zcu102. `benchmarks.tuners.sample_efficiency
    --tuners default:alpha=7,default` repeats an ablation.
    """

    alpha: float = Field(
        3.0, ge=0, description="configs lowered in addition to the batch, per trial"
    )
    first_alpha: float = Field(
        47.0, ge=0, description="the same for a first batch that is chosen without a model"
    )
    warm_alpha: float = Field(
        23.0,
        ge=0,
        description="the same as alpha where a transferred model ranks the compiled programs",
    )
    looking: float = Field(
        1.0,
        ge=0,
        description="time limit for lowering additional configs, as a multiple of the time "
        "that the batch takes",
    )
    estimates: bool = Field(
        True, description="use closed-form estimates at the start, if the target provides them"
    )
    chance_weight: float = Field(1.0, ge=0, description="weight of log P(valid) relative to log EI")
    risk: float = Field(
        0.5, ge=0, description="fraction of this weight where compiling takes longer than running"
    )
    use_a: bool = Field(True, description="choose among compiled configs by their hidden features")
    first_a: int = Field(4, ge=2, description="number of valid trials before Model A is used")
    trust: float = Field(
        0.5, gt=0, lt=1, description="fraction of a first batch with the best predictions"
    )
    checks: float = Field(
        0.17,
        ge=0,
        lt=1,
        description="fraction of the additionally compiled configs that is used to check the "
        "models",
    )
    believed: float = Field(
        0.75, gt=0, lt=1, description="fraction of a first batch that a transferred model chooses"
    )
    pool: int = Field(
        16384,
        ge=64,
        description="number of candidates to score where a space is too large to score completely",
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
