"""The arrows between modules, and what may be done in one place only."""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent_made import python

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "preflight"
NODE = sorted((PACKAGE / "node").glob("*.py"))
CHECKS = sorted((ROOT / "checks").rglob("*.py"))
SHIPPED = [PACKAGE / "__init__.py", PACKAGE / "api.py", *NODE, *CHECKS]
ALL = sorted({*PACKAGE.rglob("*.py"), *CHECKS})
IN_FUNCTIONS = {"psutil", "pynvml"}
"""What a node is sent beside our own: a file must load where there is neither."""
TRAINING = {
    f"preflight/node/{name}.py" for name in ("interpreter", "torch_interpreter", "torch_rank")
}
"""Sent to the training interpreter as text, and run there: no part of the agent."""
BROAD = {
    "preflight/node/child.py": "a probe's bug",
    "preflight/judge.py": "a judge's bug",
    "preflight/catalog.py": "a check file that does not import",
    "preflight/exercises.py": "one node's trouble, or an exercise's bug",
    "preflight/fanout.py": "the worker of one node: raised again where its result is taken",
    "preflight/cli/__init__.py": "our own bug, written into a file",
}
"""The only places that may catch whatever is raised."""


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(part: ast.AST) -> list[str]:
    """Return the modules that an import statement names, none for other statements."""
    if isinstance(part, ast.Import):
        return [alias.name for alias in part.names]
    if isinstance(part, ast.ImportFrom):
        return ["." * part.level + (part.module or "")]
    return []


def found(paths: list[Path], wrong: Callable[[ast.AST], object]) -> list[str]:
    """Return where something is, as `file:line`."""
    return [
        f"{name(path)}:{getattr(part, 'lineno', 0)}"
        for path in paths
        for part in ast.walk(tree(path))
        if wrong(part)
    ]


def files(places: list[str]) -> set[str]:
    return {place.partition(":")[0] for place in places}


def dotted(part: ast.AST) -> str:
    """Return a name such as `os.fork`, empty for anything else."""
    if isinstance(part, ast.Attribute):
        return f"{dotted(part.value)}.{part.attr}"
    return part.id if isinstance(part, ast.Name) else ""


def called(part: ast.AST) -> str:
    return dotted(part.func) if isinstance(part, ast.Call) else ""


def outside_functions(part: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(part):
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from outside_functions(child)


def test_there_is_something_to_look_at() -> None:
    assert len(NODE) > 8
    assert len(CHECKS) > 5
    assert len(ALL) > 50


@pytest.mark.parametrize("path", SHIPPED, ids=name)
def test_shipped_files_need_nothing(path: Path) -> None:
    ours = {module(file) for file in SHIPPED if file not in CHECKS}
    wrong = []
    for part in ast.walk(tree(path)):
        for wanted in imported(part):
            root = wanted.partition(".")[0]
            there = IN_FUNCTIONS | ({"torch"} if name(path) in TRAINING else set())
            allowed = wanted in ours or root in there or root in sys.stdlib_module_names
            if not allowed:
                wrong.append(wanted)
    assert wrong == []
    top = {n.partition(".")[0] for p in outside_functions(tree(path)) for n in imported(p)}
    assert top & IN_FUNCTIONS == set()


@pytest.mark.parametrize("path", SHIPPED, ids=name)
def test_shipped_files_compile_on_the_oldest(path: Path) -> None:
    ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 8))


def test_shipped_files_under_the_oldest() -> None:
    code = "import sys\nfor p in sys.argv[1:]: compile(open(p, encoding='utf-8').read(), p, 'exec')"
    subprocess.run([python("3.8"), "-c", code, *map(str, SHIPPED)], check=True, timeout=60)


def test_shipped_files_call_nothing_newer() -> None:
    vermin = Path(sys.executable).with_name("vermin")
    done = subprocess.run(
        [vermin, "-t=3.8-", "--no-tips", "--violations", *SHIPPED],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_no_cycles() -> None:
    known = {module(path): path for path in ALL if path not in CHECKS}
    arrows: dict[str, set[str]] = {}
    for this, path in known.items():
        arrows[this] = set()
        for part in ast.walk(tree(path)):
            wanted = set(imported(part))
            if isinstance(part, ast.ImportFrom):
                wanted |= {f"{part.module}.{alias.name}" for alias in part.names}
            arrows[this] |= {other for other in wanted if other in known}
        arrows[this] -= {this}
    assert list(graphlib.TopologicalSorter(arrows).static_order())


def test_a_recording_is_not_imported_by_what_a_run_sends() -> None:
    sent = [path for path in NODE if path.name not in {"replay.py", "recorder.py"}]
    assert found(sent, lambda part: "preflight.node.replay" in imported(part)) == []


def test_no_relative_imports_and_no_type_checking() -> None:
    assert found(ALL, lambda part: any(n.startswith(".") for n in imported(part))) == []
    assert found(ALL, lambda part: dotted(part).endswith("TYPE_CHECKING")) == []


def raised(part: ast.AST) -> str:
    """Return the name of what is raised, if something is."""
    return dotted(part.exc) if isinstance(part, ast.Raise) and part.exc else ""


def test_only_the_command_line_exits() -> None:
    exits = {"sys.exit", "os._exit", "exit", "quit", "os.abort", "SystemExit"}
    places = found(ALL, lambda part: called(part) in exits or raised(part) == "SystemExit")
    on_nodes = {f"preflight/node/{n}.py" for n in ("agent", "boot", "toolbox")} | TRAINING
    assert {f for f in files(places) if not f.startswith("preflight/cli/")} == on_nodes


def test_only_the_report_and_the_command_line_print() -> None:
    writes = {"print", "click.echo", "click.secho", "sys.stdout.write", "sys.stderr.write"}
    places = found(ALL, lambda part: called(part) in writes or called(part).endswith(".print"))
    allowed = {"preflight/report/terminal.py", *TRAINING}
    assert {f for f in files(places) if not f.startswith("preflight/cli/")} <= allowed


def test_only_ssh_imports_paramiko() -> None:
    places = found(ALL, lambda part: any(n.startswith("paramiko") for n in imported(part)))
    ssh = {"preflight/transport/ssh.py", "preflight/transport/protocol.py"}
    assert files(places) == {*ssh, "preflight/demo/server.py"}


def test_only_the_toolbox_starts_processes_on_a_node() -> None:
    starts = ("os.system", "os.popen", "os.exec", "os.spawn", "os.posix_spawn", "pty.")
    modules = {"subprocess", "multiprocessing", "concurrent.futures", "pty"}
    places = found(
        SHIPPED,
        lambda part: called(part).startswith(starts) or modules & set(imported(part)),
    )
    assert files(places) - TRAINING == {"preflight/node/toolbox.py"}
    forks = found(SHIPPED, lambda part: called(part).startswith("os.fork"))
    assert files(forks) - TRAINING == {"preflight/node/agent.py", "preflight/node/toolbox.py"}


def test_broad_catches_are_few() -> None:
    def broad(part: ast.AST) -> bool:
        if not isinstance(part, ast.ExceptHandler):
            return False
        kinds = part.type.elts if isinstance(part.type, ast.Tuple) else [part.type]
        return any(kind is None or dotted(kind) in {"Exception", "BaseException"} for kind in kinds)

    places = found([path for path in ALL if name(path) not in TRAINING], broad)
    assert files(places) == set(BROAD)
    assert len(places) == len(BROAD)
    suppressed = found(
        ALL,
        lambda part: (
            called(part).endswith("suppress")
            and isinstance(part, ast.Call)
            and {"Exception", "BaseException"} & {dotted(arg) for arg in part.args}
        ),
    )
    assert suppressed == []


def test_probes_and_judges_see_the_machine_through_the_door_only() -> None:
    """A check file has no business with files, the environment or psutil of its own."""
    doors = {"open", "os.environ", "os.listdir", "os.stat", "os.getenv", "socket.gethostname"}
    places = found(CHECKS, lambda part: called(part) in doors or dotted(part) == "os.environ")
    assert places == []
