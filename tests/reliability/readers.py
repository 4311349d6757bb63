"""Finds all functions of the package that open a file for reading, by parsing its source.

A reader is named by its module and its qualified name, such as
`tilewright.core.files:read_json_file`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("tilewright", "flows", "tasks", "models")
_CALLED = frozenset({"open", "open_own", "open_to_read", "read_json_file", "read_plain"})
_METHODS = frozenset({"load_module", "pread", "read_bytes", "read_text"})
_OF_MODULES = {
    "gzip": "open", "io": "open", "np": "load", "onnx": "load", "os": "open", "pq": "read_table",
    "sqlite3": "connect", "tomllib": "load", "zipfile": "ZipFile",
}  # fmt: skip


TRUSTED: dict[str, tuple[str, ...]] = {
    "it opens files for other functions, which are listed themselves, or makes them": (
        "tilewright.cli.app:end_output", "tilewright.cli.stdio:_fit",
        "tilewright.cli.stdio:prepare_streams", "tilewright.core.files:append",
        "tilewright.core.files:pack_files", "tilewright.core.files:read_json_file",
        "tilewright.core.files:sync_folder", "tilewright.core.files:write_atomically",
        "tilewright.core.files:open_own", "tilewright.core.files:open_to_read",
        "tilewright.core.files:read_plain",
        "tilewright.core.private_files:held_alone",
        "tilewright.core.private_files:write_private",
        "tilewright.services.server_process:start_server", "tilewright.targets.cluster.keys:_write",
        "tilewright.tuning.delete_output:_opened",
    ),
    "its files are of the user's own workspace or registry, or of the user's home": (
        "tilewright.cli.error_messages:_database_problem",
        "tilewright.dashboard.deletion:_holds",
        "tilewright.core.private_files:read_private",
        "tilewright.models.counter_regression:CounterRegression.load",
        "tilewright.models.gaussian:GaussianProcess.load",
        "tilewright.models.saved_state:_digest", "tilewright.models.saved_state:load_state",
        "tilewright.models.transfer.files:read_files",
        "tilewright.models.trees:LightGBM.load", "tilewright.models.trees:XGBoost.load",
        "tilewright.services.page_addresses:_read",
        "tilewright.services.page_addresses:_read_claims",
        "tilewright.services.page_addresses:_locked_claims",
        "tilewright.services.prefect_server:_announced_address",
        "tilewright.services.mlflow_database:relocate_artifacts",
        "tilewright.services.retention:compact_database",
        "tilewright.services.server_process:ServerProcess._last_words",
        "tilewright.services.prefect_mlflow_settings:profile_settings",
        "tilewright.services.workspace:_check_version",
        "tilewright.targets.ground_truth:read_ground_truth",
    ),
    "its files are the installation's own": (
        "tilewright.dashboard.server:application.file",
        "tilewright.networks.partition.supported_forms:supported_forms",
        "tilewright.evaluation.compare.workload_runs:code_digest",
        "tilewright.flows.deploy_all:_automations", "tilewright.flows.deploy_all:_deploy",
        "tilewright.flows.deploy_all:_check_unserved",
        "tilewright.fusion.learned.pretrained:shipped_digest",
        "tilewright.targets.board.board_runner:BoardBench._build",
        "tilewright.targets.cpu.target:_sources",
        "tilewright.networks.compiled.c_interface:write_c_interface",
        "tilewright.targets.kernel_compilation:_folder_of",
        "tilewright.targets.source_digest:source_digest",
        "tilewright.targets.vta.baseline:_tophub", "tilewright.targets.vta.board.runtime:source",
        "tilewright.tasks.log_results:_code",
        "tilewright.tuning.network:source_digest",
    ),
    "this command, or a child of it, has just made the file, in a folder of its own": (
        "tilewright.core.files:providing",
        "tilewright.models.transfer.trees:TransferXGBoost._packed",
        "tilewright.models.transfer.timed_trees:Chance.to_bytes",
        "tilewright.networks.artifact.build:_library",
        "tilewright.networks.compiled.library:_link_library",
        "tilewright.networks.quantisation.bn_folding:_optimised",
        "tilewright.services.prefect_server:preparing_database_template",
        "tilewright.targets.board.board_runner:BoardBench._compare_output",
        "tilewright.targets.cpu.assembly:link", "tilewright.targets.cpu.measure:CpuBench.load",
        "tilewright.tasks.codecs:encode_state",
    ),
    "it runs code, which a user has to allow": (
        "tilewright.networks.compiled.loaded_library:LoadedLibrary.__init__",
        "tilewright.networks.relax.cpu_subgraphs:Library.load",
    ),
    "the kernel wrote it": (
        "tilewright.networks.onnx.size_limits:machine_memory_bytes",
        "tilewright.core.process_info:_space", "tilewright.core.process_info:_status",
        "tilewright.services.page_addresses:is_own_listener",
        "tilewright.evaluation.engines.process:_peak_bytes",
        "tilewright.evaluation.engines.process:_waited_seconds",
        "tilewright.evaluation.engines.timing:_stolen_ticks",
        "tilewright.targets.cpu.machine:_read_text", "tilewright.targets.cpu.runner:quiet_machine",
    ),
    "it is in the user's own workspace": ("tilewright.tuning.open_trials:store_url",),
    "it hashes bytes, whatever they are": (
        "tilewright.tasks.tracking:table_dataset", "tilewright.tuning.network:_file_digest",
        "tilewright.tuning.run_metadata:origin_of",
    ),
    "it copies bytes, whatever they are": (
        "tilewright.evaluation.compare.job_runner:_call",
    ),
}  # fmt: skip
"""Readers that read no untrusted files, by the reason."""


def readers() -> set[str]:
    """Return the names of all readers in the package."""
    return {name for path in _sources() for name in _readers_in(path)}


def _sources() -> Iterator[Path]:
    """Yield each Python file once, although some folders are links to others."""
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            if path.resolve() == path:
                yield path


def _readers_in(path: Path) -> Iterator[str]:
    parts = path.relative_to(ROOT).with_suffix("").parts
    module = ".".join(parts if parts[0] == "tilewright" else ("tilewright", *parts))
    readers: list[str] = []
    _visit(ast.parse(path.read_text()), "", readers)
    yield from (f"{module.removesuffix('.__init__')}:{name}" for name in readers)


def _visit(node: ast.AST, name: str, found: list[str]) -> None:
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}".lstrip(".")
        elif isinstance(child, ast.Call) and _reads(child):
            found.append(name)
        _visit(child, inner, found)


def _reads(call: ast.Call) -> bool:
    called = call.func
    if isinstance(called, ast.Name):
        return called.id in _CALLED
    if not isinstance(called, ast.Attribute):
        return False
    of = called.value.id if isinstance(called.value, ast.Name) else ""
    if called.attr in _METHODS or _OF_MODULES.get(of) == called.attr:
        return not _in_memory(call)
    mode = call.args[0] if call.args else None
    return called.attr == "open" and isinstance(mode, ast.Constant) and isinstance(mode.value, str)


def _in_memory(call: ast.Call) -> bool:
    """Return whether a call reads bytes in memory, as in `zipfile.ZipFile(io.BytesIO(data))`."""
    first = call.args[0] if call.args else None
    return isinstance(first, ast.Call) and ast.unparse(first.func) == "io.BytesIO"
