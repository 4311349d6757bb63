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

    alpha: float = Field(3.0, ge=0, description="configs lowered beyond the batch, per trial")
    first_alpha: float = Field(47.0, ge=0, description="the same, of a first batch chosen blindly")
    warm_alpha: float = Field(
        23.0, ge=0, description="the same as alpha, where a transferred model judges programs"
    )
    looking: float = Field(
        1.0,
        ge=0,
        description="time for lowering beyond a batch at most, as a multiple of the batch's",
    )
    estimates: bool = Field(True, description="start from closed-form estimates, if there are any")
    chance_weight: float = Field(1.0, ge=0, description="weight of log P(valid) beside log EI")
    risk: float = Field(0.5, ge=0, description="part of it where compiles are dearer than runs")
    use_a: bool = Field(True, description="choose among compiled configs by hidden features")
    first_a: int = Field(4, ge=2, description="valid trials before Model A is asked")
    trust: float = Field(0.5, gt=0, lt=1, description="part of a first batch that looks best")
    checks: float = Field(
        0.17, ge=0, lt=1, description="part of what is compiled beyond a batch, to check models"
    )
    believed: float = Field(
        0.75, gt=0, lt=1, description="part of a first batch that a transferred model names"
    )
    pool: int = Field(16384, ge=64, description="candidates scored where a space is too large")
    screen: int = Field(16384, ge=64, description="configs estimated where a space is too large")
    passed: int = Field(2048, ge=64, description="of those screened, the best that are scored")
    asked: int = Field(
        4096, ge=64, description="configs a transferred model is asked about where there are more"
    )
