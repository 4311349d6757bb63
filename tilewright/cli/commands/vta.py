"""The commands `tilewright vta`: simulate, check, disassemble and assemble instruction streams."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli.paths import target_text
from tilewright.cli.signals import run_interruptible
from tilewright.core.errors import TilewrightError, UnknownName
from tilewright.core.working_folder import as_typed

if TYPE_CHECKING:
    from tilewright.targets.vta.spec import VtaSpec
    from tilewright.targets.vta.timing import CycleReport

Insns = Annotated[
    Path,
    typer.Option(
        "--insns", help="Instruction stream: raw, little-endian, 16 bytes per instruction."
    ),
]
Spec = Annotated[
    str,
    typer.Option(
        "--spec",
        help="The VTA that runs the stream: a preset, or a JSON file (vta_config.json).",
        callback=target_text,
    ),
]
Dram = Annotated[
    Path, typer.Option("--dram", help="Raw image of the memory before the program runs.")
]
DramBase = Annotated[
    str, typer.Option("--dram-base", help="Address of the first byte of the image.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FIRST_ADDRESS = "0x1000"
MOST_BYTES = 1 << 30
"""Maximum size in bytes of an input file. Without a limit, reading a device such as /dev/zero would
never end."""

commands = typer.Typer(
    help="Time, run, check and disassemble VTA instruction streams.", no_args_is_help=True
)


@commands.command("cycles")
def cycles(
    insns: Insns,
    spec: Spec,
    as_json: AsJson = False,
    timeline: Annotated[
        Path | None,
        typer.Option(
            help="Write the start and end cycle of each instruction to this .parquet or .json file."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Write a chart of how the hardware units overlap to this .png or .html file."
        ),
    ] = None,
    insn_base: Annotated[str, typer.Option(help="Address of the first instruction.")] = "0",
    limit: Annotated[
        int | None,
        typer.Option(
            help="Stop after this many simulation steps (bursts read and rows written).  "
            "[default: 2^30]",
            min=1,
        ),
    ] = None,
) -> None:
    """Simulate the timing of a program.

    Prints the number of cycles from the launch to the FINISH instruction, and how busy each
    hardware unit is.
    """
    from tilewright.reports.timeline import activities, write_plot, write_timeline
    from tilewright.targets.vta.program import words_of
    from tilewright.targets.vta.timing import WORK_LIMIT, CycleLimitExceeded, simulate_program

    hardware, words, base = _spec(spec), words_of(_read(insns)), _address(insn_base)
    try:
        report = run_interruptible(
            lambda: simulate_program(words, hardware, base, work_limit=limit or WORK_LIMIT)
        )
    except CycleLimitExceeded as error:
        raise TilewrightError(f"{error}; raise the limit with --limit") from None
    if timeline is not None:
        write_timeline(timeline, report)
    if plot is not None:
        write_plot(plot, report, f"{insns.name} on {hardware.name}", hardware.clock_mhz)
    typer.echo(
        json.dumps(activities(report), indent=2)
        if as_json
        else _cycles_text(report, hardware.clock_mhz)
    )


@commands.command("run")
def run(
    insns: Insns,
    dram: Dram,
    spec: Spec,
    out: Annotated[
        Path, typer.Option(help="Write the memory to this file after the program has run.")
    ],
    dram_base: DramBase = FIRST_ADDRESS,
    semantics: Annotated[
        str,
        typer.Option(
            help="Behaviour where implementations of the VTA differ: 'functional' or 'chisel'."
        ),
    ] = "functional",
    as_json: AsJson = False,
) -> None:
    """Run a program in the functional simulator, and write the resulting memory to a file.

    Also prints how many bytes the program moved and how many operations it computed.
    """
    from tilewright.targets.vta.functional import SEMANTICS, simulate
    from tilewright.targets.vta.program import Program

    if semantics not in SEMANTICS:
        raise UnknownName("semantics", semantics, list(SEMANTICS))
    program = Program.from_bytes(_read(insns), _read(dram), _address(dram_base))
    hardware = _spec(spec)
    done = run_interruptible(lambda: simulate(program, hardware, SEMANTICS[semantics]))
    _write(out, done.dram.tobytes())
    left = {name: count for name, count in done.tokens_left.items() if count}
    if as_json:
        document = {"out": as_typed(str(out)), "counters": done.counters, "tokens_left": left}
        typer.echo(json.dumps(document, indent=2))
        return
    for name, value in done.counters.items():
        typer.echo(f"{name:24}{value:>16,}")
    if left:
        typer.echo(f"dependency tokens left: {', '.join((f'{k} {v}' for k, v in left.items()))}")


@commands.command("lint")
def lint(
    insns: Insns,
    dram: Dram,
    spec: Spec,
    dram_base: DramBase = FIRST_ADDRESS,
    as_json: AsJson = False,
) -> None:
    """Check a program for errors and portability.

    The command reports invalid instructions, and instructions that behave differently on different
    implementations of the VTA. The exit status is 1 if it reports anything.
    """
    from tilewright.targets.vta.lint import lint as findings_of
    from tilewright.targets.vta.program import Program

    program = Program.from_bytes(_read(insns), _read(dram), _address(dram_base))
    hardware = _spec(spec)
    findings = run_interruptible(lambda: findings_of(program, hardware))
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            typer.echo(f"{finding.severity:8} {finding.name}: {finding.text}")
        if not findings:
            typer.echo("clean: the program behaves the same on every implementation")
    raise typer.Exit(1 if findings else 0)


@commands.command("disasm")
def disasm(
    insns: Insns,
    spec: Spec,
    out: Annotated[Path | None, typer.Option(help="Write the listing to this file.")] = None,
) -> None:
    """Disassemble an instruction stream into a readable listing.

    'tilewright vta asm' converts the listing back into the same bytes.
    """
    from tilewright.targets.vta.disassembler import disassemble
    from tilewright.targets.vta.program import words_of

    text = disassemble(words_of(_read(insns)), _spec(spec))
    if out is None:
        typer.echo(text, nl=not text.endswith("\n"))
    else:
        _write(out, text.encode())


@commands.command("asm")
def asm(
    listing: Annotated[Path, typer.Option(help="A listing in the format that 'disasm' writes.")],
    spec: Spec,
    out: Annotated[Path, typer.Option(help="File to write the instruction stream to.")],
) -> None:
    """Assemble a listing into an instruction stream."""
    from tilewright.targets.vta.disassembler import assemble

    try:
        text = _read(listing).decode()
    except UnicodeDecodeError:
        raise TilewrightError(
            f"{listing} is not text; give a listing that 'tilewright vta disasm' wrote"
        ) from None
    words = assemble(text, _spec(spec))
    _write(out, words.astype("<u8").tobytes())


def _cycles_text(report: CycleReport, clock_mhz: float) -> str:
    """Return a text with the total cycles and, for each unit, how long it is busy and what it does.

    Args:
        report: the simulated cycles.
        clock_mhz: clock frequency in MHz, with which cycles are converted to times.
    """
    from tilewright.reports.number_format import count_text, milliseconds
    from tilewright.targets.vta.instruction_format import MODULE_NAMES

    total = report.total
    time = f"{milliseconds(total / (clock_mhz * 1e6))} ms at {clock_mhz:g} MHz"
    lines = [
        f"{count_text(total, 'cycle')}, {time}, {count_text(len(report.insns), 'instruction')}"
    ]
    for unit in MODULE_NAMES:
        spent = sorted(report.spent(unit).items(), key=lambda item: -item[1])
        parts = ", ".join(f"{name} {cycles / total:.1%}" for name, cycles in spent)
        busy = report.busy(unit)
        lines.append(f"  {unit:8} busy {busy:>12,} ({busy / total:6.1%})  {parts}")
    lines.append(
        f"  read {report.read_beats:,} beats in {report.read_bursts:,} bursts, "
        f"wrote {report.write_beats:,} in {report.write_bursts:,}"
    )
    return "\n".join(lines)


def _spec(text: str) -> VtaSpec:
    """Return the specification in a preset or file. Print remarks about it to standard error."""
    from tilewright.cli.options import say_remarks
    from tilewright.targets.vta.spec import VtaSpec

    spec = VtaSpec.load(text)
    say_remarks(text)
    return spec


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as handle:
            data = handle.read(MOST_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TilewrightError(
            f"cannot read {path}: {reason}; check the path and its permissions"
        ) from None
    if len(data) > MOST_BYTES:
        raise TilewrightError(f"{path} has more than {MOST_BYTES:,} bytes; give a smaller file")
    return data


def _write(path: Path, data: bytes) -> None:
    from tilewright.core.files import write_atomically

    try:
        write_atomically(path, data)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise TilewrightError(f"cannot write {path}: {reason}; choose another path") from None


def _address(text: str) -> int:
    try:
        value = int(text, 0)
    except ValueError:
        value = -1
    if not 0 <= value < 1 << 32:
        raise TilewrightError(f"{text} is not an address; write a number such as 4096 or 0x1000")
    return value
