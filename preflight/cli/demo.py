"""`preflight demo`."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import click

from preflight.api import FAIL, PASS, WARN
from preflight.cli import options, run
from preflight.demo import cluster
from preflight.demo.nodes import FAULTS, nodes
from preflight.errors import ConfigError, PreflightError
from preflight.judge import REACH
from preflight.node_names import address_problem
from preflight.recording import Recording, load
from preflight.report.folding import folded
from preflight.report.model import Report, read

FOLDER = "preflight-demo"
BEFORE = """\
The {nodes} simulated. Logins, agents and checks are real, by
SSH to 127.0.0.1; what a machine answers comes from a recording, and nothing is
sent between nodes.

$ {program} run {inventory}
"""
AFTER = """
The nodes above are simulated. Three of them had a fault put in, each was found:
{faults}

By hand, in two terminals:
  {program} demo --serve{folder}
  {program} run {inventory}
On nodes of your own:
  {program} run --hosts 'gpu[01-08]'"""
SERVING = """\
The simulated {nodes} up on 127.0.0.1 until Ctrl-C.
In another terminal:
  {program} run {inventory}"""


@click.command(name="demo")
@click.argument("recordings", metavar="[RECORDING]...", nargs=-1, type=options.PATH)
@click.option(
    "--folder",
    type=options.PATH,
    default=FOLDER,
    show_default=True,
    metavar="FOLDER",
    help="For inventory and keys, which stay.",
)
@click.option("--serve", is_flag=True, help="Only keep the nodes up, until Ctrl-C.")
def command(recordings: tuple[Path, ...], folder: Path, serve: bool) -> int:
    """Check six simulated nodes, of which three have a fault.

    With RECORDINGs of your own, as `preflight record` writes them, these are the nodes, each named
    as its file.

    Exit codes: 0 the three faults were found; of your own recordings, as `preflight run` has it.
    """
    machines = own(recordings) if recordings else nodes()
    with cluster.up(folder, machines) as inventory:
        words = {
            "program": program(),
            "nodes": counted(machines),
            "inventory": shlex.quote(str(inventory)),
        }
        if serve:
            click.echo(SERVING.format(**words))
            wait()
            return 0
        click.echo(BEFORE.format(**words))
        code, report = checked(inventory)
    if recordings:
        click.echo(f"\nThe {counted(machines)} simulated.")
        return code
    see_found(report)
    lines = [f"  {node}  {fault.words}" for node, fault in FAULTS.items()]
    other = "" if folder == Path(FOLDER) else f" --folder {shlex.quote(str(folder))}"
    click.echo(AFTER.format(faults="\n".join(lines), folder=other, **words))
    return 0


def counted(machines: Collection[str]) -> str:
    """Return the nodes' names with the verb that goes with one or many."""
    names = folded(machines)
    return f"node {names} is" if len(machines) == 1 else f"nodes {names} are"


def own(paths: Sequence[Path]) -> dict[str, Recording]:
    """Return the user's recordings by the names of their nodes.

    Raises:
        ConfigError: one is no recording, or two have one name.
    """
    found: dict[str, Recording] = {}
    for path in paths:
        if problem := address_problem(path.stem):
            raise ConfigError(f"{path}: the file's name is the node's: {problem}")
        if path.stem in found:
            raise ConfigError(f"{path}: another recording is called {path.stem!r} too; rename one")
        found[path.stem] = load(path)
    return found


def program() -> str:
    """Return how this program is called; in an environment that is not on PATH, by its path."""
    name = click.get_current_context().find_root().info_name or "preflight"
    return name if " " in name or shutil.which(name) else shlex.quote(sys.argv[0])


def wait() -> None:
    """Wait for Ctrl-C, or for SIGTERM or the end of the terminal, which say the same.

    By a pipe: a signal that comes while the servers' threads are busy may be taken by one of them,
    and then does not wake this one from a lock.
    """
    come, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup(1)
            signal.signal(number, lambda *_: None)
    os.read(come, 1)


def checked(inventory: Path) -> tuple[int, Report]:
    """Do what the printed command does; return its exit code and report."""
    with tempfile.TemporaryDirectory(prefix="preflight-demo-") as made:
        path = Path(made, "report.json")
        words = ["--json", str(path), "--", str(inventory)]
        code = run.command.main(words, prog_name="preflight run", standalone_mode=False)
        return code, read(path)


def see_found(report: Report) -> None:
    """See that the run told the three faults, and blamed nothing else.

    Raises:
        PreflightError: it did not.
    """
    if any(row.check == REACH and row.status != PASS for row in report.results):
        raise PreflightError(
            "the demo did not reach all of its nodes; see the reasons above, then try again"
        )
    wrong = {(row.node, row.check) for row in report.results if row.status in {FAIL, WARN}}
    told = {(*cause.nodes, cause.check) for cause in report.causes}
    if not wrong == told == {(node, fault.check) for node, fault in FAULTS.items()}:
        raise PreflightError("the demo did not show the faults that it put in: please report this")
