"""The errors a user can meet: each message names the cause and the next step."""


class TilewrightError(Exception):
    """A mistake in the input; `str(error)` is what a terminal shows, without a traceback."""


class SpecError(TilewrightError):
    """A hardware specification that cannot be read or cannot be encoded."""


class WorkloadError(TilewrightError):
    """A workload text or shape that makes no sense."""


class UnknownName(TilewrightError):
    """A target, space, tuner or network nobody registered."""

    def __init__(self, kind: str, name: str, known: list[str]) -> None:
        super().__init__(f"unknown {kind} '{name}'; known: {', '.join(sorted(known))}")
