"""The errors a user can meet. Each names the cause and the next step, and none carries a traceback to the terminal."""


class TilewrightError(Exception):
    """A mistake in the input: `str(error)` is one message that names the cause and the next step."""


class SpecError(TilewrightError):
    """A hardware specification that cannot be read or cannot be encoded."""


class WorkloadError(TilewrightError):
    """A workload text or shape that makes no sense."""


class UnknownName(TilewrightError):
    """A target, space, tuner or network nobody registered."""

    def __init__(self, kind: str, name: str, known: list[str]) -> None:
        super().__init__(f"unknown {kind} '{name}'; known: {', '.join(sorted(known))}")
