"""Formats of all files that are written and read again, with their versions.

A version changes when earlier programs would misread a file. Each reader refuses versions that it
does not list, and names the next step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.core.files import Json


@dataclass(frozen=True)
class Format:
    """A format of a file, or of a folder whose `file` names the version.

    `key` is where the version stands in it. `read` lists the versions that are read, `written`
    among them. A file without the key is of version `unmarked`; None where each file has the key.
    With `silent`, version 1 is written without the key: earlier programs set such a line aside.
    `otherwise` is what to do about any other version. Of a `cache` it is done without a word: what
    the file holds is made again.
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
        """What a document says to be, read or not."""
        return document.get(self.key, self.unmarked)

    def reads(self, version: Json) -> bool:
        """Whether files of this version are read; one that is no number never is."""
        return type(version) is int and version in self.read

    def mismatch(self, place: object, version: Json) -> str:
        """Why the file at a place is not read; empty where it is."""
        if self.reads(version):
            return ""
        said = "without a version" if version is None else f"of version {_shown(version)}"
        return f"{place} is {self.name} {said}, this program reads {' and '.join(self._known)}"

    def refusal(self, place: object, version: Json) -> str:
        """The same with the next step."""
        why = self.mismatch(place, version)
        return why and f"{why}; {self.otherwise}"

    @property
    def _known(self) -> list[str]:
        return [str(each) for each in self.read]

    def to_json(self) -> dict[str, Json]:
        """What `tilewright --version --json` prints of it."""
        return {
            "file": self.file, "key": self.key, "written": self.written, "read": list(self.read),
            "without_key": self.unmarked, "otherwise": self.otherwise,
        }  # fmt: skip


def _shown(version: Json) -> str:
    """Of a list or an object its kind: it may be deep."""
    if isinstance(version, list | dict):
        return "[...]" if isinstance(version, list) else "{...}"
    return ascii(str(version))[1:-1][:40]


_TUNE = "tune again, into another folder, or install the tilewright that wrote it"
_FRESH = (
    "choose another folder with --out, replace all it holds with --fresh, or install the "
    "tilewright that wrote it"
)
_BUILD = "build it again, or install the program that built it"

RUN = Format("a run", "run.json", "version", 1, (1,), _FRESH)
SUMMARY = Format("a summary", "summary.json", "version", 3, (1, 2, 3), _TUNE, unmarked=1)
SCHEDULES = Format("a file of schedules", "schedules.json", "version", 1, (1,), _TUNE)
FUSION = Format("a file of labels", "fusion.json", "version", 1, (1,), _TUNE, unmarked=1)
TRIALS = Format(
    "a table of trials", "trials.parquet", "tilewright.version", 1, (1,), _TUNE, unmarked=1
)
LEDGER = Format(
    "a ledger", "ledger.jsonl, trials.ledger", "version", 1, (1,),
    "choose another folder with --out, or install the tilewright that wrote it",
    unmarked=1, silent=True,
)  # fmt: skip
TRIAL_STORE = Format(
    "a database of trials",
    "trials.sqlite",
    "version",
    2,
    (1, 2),
    "choose another folder with --out, or install the tilewright that wrote it",
)
SWEEP = Format(
    "a comparison on networks", "sweep.json", "version", 1, (1,), "repeat 'tilewright compare'"
)
COMPARISON = Format(
    "a comparison", "comparison.json", "version", 1, (1,), "repeat 'tilewright compare'", unmarked=1
)
DIFF = Format("a verdict", "output of 'tilewright diff --json'", "version", 1, (), "diff again")
FINISHED_RUNS = Format(
    "a list of finished runs", "runs.jsonl", "version", 1, (1,),
    "the runs are made again", unmarked=1, cache=True,
)  # fmt: skip
CODESIGN = Format("a co-design run", "run.json (kind: codesign)", "version", 1, (1,), _FRESH)
ARTIFACT = Format("an artifact", "manifest.json", "version", 3, (2, 3), _BUILD)
NETWORK = Format("a network of an artifact", "network.bin", "version", 2, (2,), _BUILD)
OFFLOADED = Format(
    "the program in a module", "program.json", "version", 1, (1,), "partition the module again"
)
DATASET = Format(
    "a dataset", "dataset.json", "version", 1, (1,),
    "build it again with 'tilewright dataset build', or install the tilewright that wrote it",
)  # fmt: skip
DATASET_PLAN = Format(
    "a plan of a dataset", "plan.json", "version", 1, (1,),
    "build into another folder, or install the tilewright that wrote it", unmarked=1,
)  # fmt: skip
MODEL = Format(
    "a model", "model.json", "format", 1, (1,),
    "train it again with 'tilewright model train', or install the tilewright that wrote it",
    unmarked=1,
)  # fmt: skip
CHAMPION = Format(
    "a champion", "MLmodel (metadata.tilewright)", "version", 1, (1,),
    "repeat 'tilewright compare', or leave out --warm-start", unmarked=1,
)  # fmt: skip
TUNER_STATE = Format(
    "a tuner's state", "state.json", "version", 1, (1,), "train again, or remove the folder",
    unmarked=1,
)  # fmt: skip
STAGE = Format(
    "a finished stage", "cache/STAGE/KEY", "version", 2, (2,),
    "the stage is performed again", cache=True,
)  # fmt: skip
GROUND_TRUTH = Format(
    "an enumerated space", "WORKLOAD-TARGET.parquet", "tilewright.version", 1, (1,),
    "the space is enumerated again", unmarked=1, cache=True,
)  # fmt: skip
WEIGHTS = Format("a file of weights", "weights.bin", "version", 1, (1,), _BUILD)
WORKSPACE = Format(
    "a workspace", "workspace.json", "version", 1, (1,),
    "set TILEWRIGHT_HOME to another folder, or install the tilewright that wrote it", unmarked=1,
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
"""All of them, by what `tilewright --version --json` calls them. `DIFF` is written for other
programs; nothing here reads it. `SWEEP` is a copy of `COMPARISON` until version 0.4."""
