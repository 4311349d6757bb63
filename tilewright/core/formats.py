"""Versions of all file formats that Tilewright writes and reads.

The version of a format is raised when older programs would misread a new file. Readers refuse
versions that they do not know, and their message names the next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.core.files import Json


@dataclass(frozen=True)
class Format:
    """Format of a file, or of a folder in which one file contains the version.

    Attributes:
        name: description of the file for messages, such as "a ledger".
        file: name of the file that contains the version.
        key: key of the version in the file.
        written: version that this program writes.
        read: versions that this program can read, including `written`.
        otherwise: instruction to the user about a file of any other version.
        unmarked: version of files without the key; None if every file has the key.
        silent: whether version 1 is written without the key, because older programs skip lines that
            have it.
        cache: whether the content can be computed again. A file of another version is then replaced
            without a message.
    """

    name: str
    file: str
    key: str
    written: int
    read: tuple[int, ...]
    otherwise: str
    unmarked: int | None = None
    silent: bool = False
    cache: bool = False

    def version_in(self, document: Mapping[str, Json]) -> Json:
        """Return the version in a document, even if this program cannot read that version.

        Args:
            document: content of a file in this format.
        """
        return document.get(self.key, self.unmarked)

    def can_read(self, version: Json) -> bool:
        """Return whether this program can read a version.

        Args:
            version: any JSON value.
        """
        return type(version) is int and version in self.read

    def mismatch(self, place: object, version: Json) -> str:
        """Return the reason why this program cannot read a file, or "" if it can.

        Args:
            place: path of the file, for the message.
            version: version of the file's format, as returned by `version_in`.
        """
        if self.can_read(version):
            return ""
        description = (
            "without a version" if version is None else f"of version {_version_text(version)}"
        )
        known = " and ".join(self._known_versions)
        return f"{place} is {self.name} {description}, this program reads {known}"

    def refusal(self, place: object, version: Json) -> str:
        """Return why this program cannot read a file and what to do about it, or "" if it can.

        Args:
            place: path of the file, for the message.
            version: version of the file's format, as returned by `version_in`.
        """
        why = self.mismatch(place, version)
        return why and f"{why}; {self.otherwise}"

    @property
    def _known_versions(self) -> list[str]:
        return [str(version) for version in self.read]

    def to_json(self) -> dict[str, Json]:
        """Return the description of the format for `tilewright --version --json`."""
        return {
            "file": self.file, "key": self.key, "written": self.written, "read": list(self.read),
            "without_key": self.unmarked, "otherwise": self.otherwise,
        }  # fmt: skip


def _version_text(version: Json) -> str:
    """Return a version for a message. For a list or an object, return only a placeholder."""
    if isinstance(version, list | dict):
        return "[...]" if isinstance(version, list) else "{...}"
    return ascii(str(version))[1:-1][:40]


_TUNE = "tune again into another folder, or install the Tilewright version that wrote it"
_FRESH = (
    "choose another folder with --out, delete its contents with --fresh, or install the "
    "Tilewright version that wrote it"
)
_BUILD = "build it again, or install the version that built it"

RUN = Format("a run", "run.json", "version", 1, (1,), _FRESH)
SUMMARY = Format("a summary", "summary.json", "version", 3, (1, 2, 3), _TUNE, unmarked=1)
SCHEDULES = Format("a schedule file", "schedules.json", "version", 1, (1,), _TUNE)
FUSION = Format("a file of fusion decisions", "fusion.json", "version", 1, (1,), _TUNE, unmarked=1)
TRIALS = Format("a trial table", "trials.parquet", "tilewright.version", 1, (1,), _TUNE, unmarked=1)
LEDGER = Format(
    "a ledger", "ledger.jsonl, trials.ledger", "version", 1, (1,),
    "choose another folder with --out, or install the Tilewright version that wrote it",
    unmarked=1, silent=True,
)  # fmt: skip
TRIAL_STORE = Format(
    "a trial database",
    "trials.sqlite",
    "version",
    2,
    (1, 2),
    "choose another folder with --out, or install the Tilewright version that wrote it",
)
SWEEP = Format(
    "a comparison on networks", "sweep.json", "version", 1, (1,), "repeat 'tilewright compare'"
)
COMPARISON = Format(
    "a comparison", "comparison.json", "version", 1, (1,), "repeat 'tilewright compare'", unmarked=1
)
DIFF = Format(
    "a comparison of two runs",
    "output of 'tilewright diff --json'",
    "version",
    1,
    (),
    "run 'tilewright diff' again",
)
FINISHED_RUNS = Format(
    "a list of finished runs", "runs.jsonl", "version", 1, (1,),
    "the runs are repeated", unmarked=1, cache=True,
)  # fmt: skip
CODESIGN = Format("a co-design run", "run.json (kind: codesign)", "version", 1, (1,), _FRESH)
ARTIFACT = Format("an artifact", "manifest.json", "version", 3, (2, 3), _BUILD)
NETWORK = Format("the network of an artifact", "network.bin", "version", 2, (2,), _BUILD)
OFFLOADED = Format(
    "the program in a module", "program.json", "version", 1, (1,), "partition the module again"
)
DATASET = Format(
    "a dataset", "dataset.json", "version", 1, (1,),
    "build it again with 'tilewright dataset build', or install the Tilewright version that "
    "wrote it",
)  # fmt: skip
DATASET_PLAN = Format(
    "the plan of a dataset", "plan.json", "version", 1, (1,),
    "build into another folder, or install the Tilewright version that wrote it", unmarked=1,
)  # fmt: skip
MODEL = Format(
    "a model", "model.json", "format", 1, (1,),
    "train it again with 'tilewright model train', or install the Tilewright version that wrote it",
    unmarked=1,
)  # fmt: skip
CHAMPION = Format(
    "a champion", "MLmodel (metadata.tilewright)", "version", 1, (1,),
    "repeat 'tilewright compare', or leave out --warm-start", unmarked=1,
)  # fmt: skip
TUNER_STATE = Format(
    "the state of a tuner", "state.json", "version", 1, (1,), "train again, or remove the folder",
    unmarked=1,
)  # fmt: skip
STAGE = Format(
    "a cached result", "cache/STAGE/KEY", "version", 2, (2,),
    "the result is computed again", cache=True,
)  # fmt: skip
GROUND_TRUTH = Format(
    "an enumerated space", "WORKLOAD-TARGET.parquet", "tilewright.version", 1, (1,),
    "the space is enumerated again", unmarked=1, cache=True,
)  # fmt: skip
WEIGHTS = Format("a weights file", "weights.bin", "version", 1, (1,), _BUILD)
WORKSPACE = Format(
    "a workspace", "workspace.json", "version", 1, (1,),
    "set TILEWRIGHT_HOME to another folder, or install the Tilewright version that wrote it",
    unmarked=1,
)  # fmt: skip

FORMATS: Mapping[str, Format] = {
    "artifact": ARTIFACT,
    "champion": CHAMPION,
    "codesign": CODESIGN,
    "comparison": COMPARISON,
    "dataset": DATASET,
    "dataset_plan": DATASET_PLAN,
    "diff": DIFF,
    "finished_runs": FINISHED_RUNS,
    "fusion": FUSION,
    "ground_truth": GROUND_TRUTH,
    "ledger": LEDGER,
    "model": MODEL,
    "network": NETWORK,
    "offloaded": OFFLOADED,
    "run": RUN,
    "schedules": SCHEDULES,
    "stage": STAGE,
    "summary": SUMMARY,
    "sweep": SWEEP,
    "trial_store": TRIAL_STORE,
    "trials": TRIALS,
    "tuner_state": TUNER_STATE,
    "weights": WEIGHTS,
    "workspace": WORKSPACE,
}
"""All file formats, by the name that `tilewright --version --json` prints. Files of the format
`DIFF` are written for other programs; Tilewright never reads them. `SWEEP` is a copy of
`COMPARISON` until version 0.4."""
