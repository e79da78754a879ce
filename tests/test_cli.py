"""The command line as a user meets it: what it prints where, and how it exits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from preflight import __version__, catalog
from tests.checks_made import write

HANDS = ["run", "checks", "explain", "judge", "schema"]


def cli(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "preflight", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
    )


def test_version_and_help() -> None:
    assert cli("--version").stdout == f"preflight {__version__}\n"
    shown = cli("--help")
    assert shown.returncode == 0
    assert all(f"\n  {command} " in shown.stdout for command in HANDS)
    for command in HANDS:
        assert cli(command, "--help").stdout.startswith(f"Usage: python -m preflight {command}")


def test_the_cli_starts_without_what_only_a_run_needs() -> None:
    code = "import sys, preflight.cli; print(*sorted(set(sys.modules) & set(sys.argv[1:])))"
    heavy = ["paramiko", "pydantic", "rich", "yaml", "psutil", "ClusterShell", "platformdirs"]
    done = subprocess.run(
        [sys.executable, "-c", code, *heavy], capture_output=True, text=True, timeout=30
    )
    assert done.stdout.strip() == ""


def test_checks_lists_every_check_with_its_claim() -> None:
    lines = cli("checks").stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(catalog.load())
    assert lines[0].endswith(catalog.load()[lines[0].split()[0]].manual.claim)


@pytest.mark.parametrize("check_id", list(catalog.load()))
def test_explain_is_the_docstring(check_id: str) -> None:
    done = cli("explain", check_id)
    manual = catalog.load()[check_id].manual
    text = "".join(done.stdout.split())
    for part in vars(manual).values():
        assert "".join(part.split()) in text
    assert max(map(len, done.stdout.splitlines())) <= 100


def test_explain_of_nothing_known() -> None:
    done = cli("explain", "network.mtuu")
    assert done.returncode == 2
    assert done.stderr.startswith("preflight: explain: there is no check or group 'network.mtuu'")


def test_this_machine_alone() -> None:
    done = cli("run", "--json", "-")
    report = json.loads(done.stdout)
    assert report["run"]["inventory"] is None
    assert [node["name"] for node in report["nodes"]] == ["localhost"]
    assert done.returncode == {"ready": 0, "not_ready": 1, "undetermined": 3}[report["verdict"]]


def test_the_report_keeps_to_its_schema(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    done = cli("run", "--only", "access", "--json", str(path))
    assert done.returncode == 3
    schema = json.loads(cli("schema", "report").stdout)
    jsonschema.Draft202012Validator(schema).validate(json.loads(path.read_text()))


def test_the_inventory_schema_takes_the_example() -> None:
    schema = json.loads(cli("schema", "inventory").stdout)
    example = yaml.safe_load(Path("inventory.example.yaml").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert set(example) <= set(schema["properties"])


def test_a_report_that_cannot_be_written(tmp_path: Path) -> None:
    done = cli("run", "--only", "access", "--json", str(tmp_path / "no" / "r.json"))
    assert done.returncode == 2
    assert (
        done.stderr == f"preflight: {tmp_path}/no/r.json: cannot write: No such file or directory\n"
    )


def test_a_check_that_does_not_import_stops_everything(tmp_path: Path) -> None:
    path = write(tmp_path, "site.bad", "import nosuch")
    done = cli("run", "--checks", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"preflight: {path}: does not import: ModuleNotFoundError: No module named 'nosuch'\n"
    )


def test_hostile_words_of_a_node_are_harmless(tmp_path: Path) -> None:
    write(
        tmp_path,
        "site.evil",
        """
        def probe(node):
            return "\\x1b[31mred\\x1b]0;title\\x07 [bold]x[/bold] \\u202egnp\\n"


        def judge(facts, want):
            return fail(facts, fix=facts, details=(facts,), reproduce=facts)


        CHECK = Check(probe=probe, judge=judge)
        """,
    )
    for more in ((), ("-v",)):
        done = cli("run", "--checks", str(tmp_path), "--only", "site", *more)
        assert done.returncode == 1
        assert not set(done.stdout) & set("\x1b\x07\u202e")
        assert "[bold]x[/bold]" in " ".join(done.stdout.split())


def test_a_reader_that_goes_away_is_no_error_of_ours() -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -m preflight explain access | head -1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "access.identity\n"
    assert done.stderr == ""


def test_our_own_bug_leaves_a_file_to_report(tmp_path: Path) -> None:
    site = tmp_path / "sitecustomize.py"
    site.write_text("import sys\nsys.modules['preflight.cli.checks'] = object()\n")
    done = cli("checks", PYTHONPATH=str(tmp_path), TMPDIR=str(tmp_path))
    assert done.returncode == 3
    (trace,) = tmp_path.glob("preflight-*.txt")
    assert done.stderr == f"preflight: internal error; please report it with {trace}\n"
    assert "Traceback" in trace.read_text()
