"""The command line as a user meets it: what it prints where, and how it exits."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import jsonschema
import pytest
import yaml

from preflight import __version__, catalog
from tests import checks_made
from tests.checks_made import write
from tests.messages.aloud import Aloud

HANDS = ["run", "checks", "explain", "judge", "launch", "schema"]


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
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(path.read_text()))
    for shape in (schema, *schema["$defs"].values()):
        assert shape["required"] == list(shape["properties"])


def test_the_inventory_schema_takes_the_example() -> None:
    schema = json.loads(cli("schema", "inventory").stdout)
    example = yaml.safe_load(Path("inventory.example.yaml").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    assert set(example) <= set(schema["properties"])


def test_the_inventory_schema_has_the_keys_of_checks_of_ones_own(tmp_path: Path) -> None:
    text = checks_made.probing("return 1").replace(
        "judge=judge", "judge=judge, expects=(Expect('fans', int, '', 'fans that turn'),)"
    )
    write(tmp_path / "site-checks", "site.fans", text)
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(
        "nodes: [{name: a, transport: local}]\nexpect: {fans: 8}\nchecks: {dirs: [site-checks]}\n"
    )
    assert cli("run", str(inventory), "--only", "site").returncode == 0
    done = cli("schema", "inventory", "--checks", str(tmp_path / "site-checks"))
    keys = json.loads(done.stdout)["$defs"]["Expect"]["properties"]
    assert keys["fans"] == {"description": "fans that turn", "minimum": 0, "type": "integer"}
    assert "mtu" in keys


def test_a_report_that_can_no_longer_be_written_is_shown_all_the_same(
    tmp_path: Path, aloud: Aloud
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    probe = f"import shutil; shutil.rmtree({str(folder)!r}); return 1"
    write(tmp_path / "checks", "site.x", checks_made.probing(probe))
    done = cli(
        *("run", "--checks", str(tmp_path / "checks"), "--only", "site"),
        *("--json", str(folder / "r.json")),
    )
    assert done.returncode == 3
    assert "READY" in done.stdout
    aloud(done.stderr)


def test_a_report_goes_to_where_a_link_or_pipe_leads(tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real.json", tmp_path / "link.json", tmp_path / "pipe"
    real.write_text("old")
    real.chmod(0o640)
    link.symlink_to(real)
    assert cli("run", "--only", "access", "--json", str(link)).returncode == 3
    assert link.is_symlink()
    assert json.loads(real.read_text())["schema"] == "preflight.report/1"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        assert cli("run", "--only", "access", "--json", str(pipe)).returncode == 3
        assert reader.stdout
        assert json.load(reader.stdout)["schema"] == "preflight.report/1"
    assert pipe.is_fifo()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this machine")
def test_a_full_disk_is_no_error_of_ours(aloud: Aloud) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "preflight", "checks"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
        )
    assert done.returncode == 3
    aloud(done.stderr)


@pytest.mark.parametrize(
    "line",
    [
        "rnu", "--versoin", "run --levl quick", "run --zzz", "run -z", "run --level", "run a b",
        "run --no-color=1", "run --level x", "run --fanout 0", "run --fanout many",
        "run --deadline nan", "run --deadline 1h", "explain", "schema x", "run --nodes ,",
        "run --exclude gpu[1-", "run --nodes localhots", "run --skip access.ssh",
        "run --skip access", "run --skip host.shm,nothing=why", "run --only host.shm,,",
        "run --require gpu,nothing", "run gpu01", "run --json no/r.json", "run --checks none",
        "judge none.json", "judge .", "explain network.mtuu",
    ],
)  # fmt: skip
def test_command_lines_that_say_nothing_sensible(line: str, aloud: Aloud) -> None:
    done = cli(*line.split(" "))
    assert (done.returncode, done.stdout) == (2, "")
    aloud(done.stderr.replace("python -m ", ""), about=line)


def test_words_that_are_not_there(aloud: Aloud) -> None:
    told = [cli("run", option, "").stderr for option in ("--nodes", "--exclude", "--hosts")]
    aloud(*told)


def test_lists_of_checks_may_have_blanks_and_commas(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    cli(
        "run",
        "--only",
        "host.shm, host.limits",
        "--skip",
        "host.limits,host.clock=later",
        "--json",
        str(path),
    )
    rows = {r["check"]: r["summary"] for r in json.loads(path.read_text())["results"]}
    assert {"host.shm", "host.limits"} <= set(rows)
    assert rows["host.limits"] == "later"


def test_a_required_check_that_does_not_run_leaves_it_open() -> None:
    done = cli("run", "--only", "host.shm", "--require", "gpu.inventory")
    assert done.returncode == 3
    assert "UNDETERMINED" in done.stdout
    assert "gpu.inventory, which is required, said nothing on localhost" in done.stdout


@pytest.mark.parametrize(
    ("text", "code"), [("raise SystemExit(0)", 2), ("import sys; sys.exit()", 2)]
)
def test_a_check_file_cannot_end_a_run(tmp_path: Path, text: str, code: int, aloud: Aloud) -> None:
    write(tmp_path, "site.bad", text)
    done = cli("run", "--checks", str(tmp_path))
    assert (done.returncode, done.stdout) == (code, "")
    aloud(done.stderr)


@pytest.mark.parametrize("name", ["", "flat.py"])
def test_a_folder_without_a_check(tmp_path: Path, name: str, aloud: Aloud) -> None:
    if name:
        (tmp_path / name).write_text("")
    done = cli("checks", "--checks", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    aloud(done.stderr)


@pytest.mark.parametrize(
    "text",
    [
        "ssh:\n  jump: b:99999\n",
        "ssh:\n  python: it's\n",
        "expect:\n  mtu: -1\n",
        "checks:\n  skip: {access.ssh: no}\n",
        "checks:\n  skip:\n    access: no\n",
        "checks:\n  require: [nothing]\n",
        "ssh:\n  key: other.yaml\n",
    ],
)
def test_inventories_that_cannot_be_meant(tmp_path: Path, text: str, aloud: Aloud) -> None:
    path = tmp_path / "c.yaml"
    (tmp_path / "other.yaml").write_text("no key")
    path.write_text(f"{text}nodes: [a]\n")
    done = cli("run", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    aloud(done.stderr, about=repr(text))


def test_a_waiver_of_a_group(tmp_path: Path) -> None:
    write(tmp_path, "site.x", checks_made.probing("return 1", "return fail('broken')"))
    path = tmp_path / "c.yaml"
    path.write_text(
        "nodes: [{name: a, transport: local}]\n"
        "waivers: [{check: site, until: 2999-01-01, owner: me, reason: known}]\n"
    )
    done = cli("run", str(path), "--checks", str(tmp_path), "--only", "site")
    assert done.returncode == 0
    assert "1 failure waived" in done.stdout


@pytest.mark.parametrize(
    ("args", "env", "colour"),
    [([], {}, True), ([], {"NO_COLOR": "1"}, False), (["--no-color"], {}, False)],
)
def test_colour_on_a_terminal(args: list[str], env: dict[str, str], colour: bool) -> None:
    ours, theirs = pty.openpty()
    clean = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR"}}
    with subprocess.Popen(
        [sys.executable, "-m", "preflight", "run", "--only", "host.shm", *args],
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**clean, "TERM": "xterm", **env},
    ):
        os.close(theirs)
        text = b""
        with suppress(OSError):  # EIO is the end
            while part := os.read(ours, 4096):
                text += part
    os.close(ours)
    assert b"READY" in text
    assert (b"\x1b[" in text) == colour


def test_a_check_that_does_not_import_stops_everything(tmp_path: Path, aloud: Aloud) -> None:
    write(tmp_path, "site.bad", "import nosuch")
    done = cli("run", "--checks", str(tmp_path))
    assert (done.returncode, done.stdout) == (2, "")
    aloud(done.stderr)


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


def test_our_own_bug_leaves_a_file_to_report(tmp_path: Path, aloud: Aloud) -> None:
    site = tmp_path / "sitecustomize.py"
    site.write_text("import sys\nsys.modules['preflight.cli.checks'] = object()\n")
    done = cli("checks", PYTHONPATH=str(tmp_path), TMPDIR=str(tmp_path))
    assert done.returncode == 3
    (trace,) = tmp_path.glob("preflight-*.txt")
    aloud(done.stderr.replace(trace.name, "TRACE"))
    assert "Traceback" in trace.read_text()
