"""The training interpreter, asked for real; the dynamic linker has the last word."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from preflight.api import Ran, Unobservable, Want
from preflight.node import linker
from preflight.node.software import BEGAN, Inside, Torch, asked, silence, source, training, versions
from preflight.node.toolbox import Toolbox

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
LOADED = """
import ctypes, sys
ctypes.CDLL(sys.argv[1])
found = [line.split()[-1] for line in open("/proc/self/maps") if "libnccl" in line]
print(found[0] if found else "")
"""


def ask(env: Mapping[str, str], python: str = sys.executable, **more: Any) -> Any:
    launch = {"python": python, "container": None, "env": env, "user": None, "workdir": None}
    return training(Toolbox(), {**launch, **more})


def inside(env: Mapping[str, str]) -> Inside:
    found: Inside = ask(env)["inside"]
    return found


def compile_library(path: Path, text: str = "", *flags: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(path), *flags]
    subprocess.run(command, input=text.encode(), check=True)
    return path


def nccl(folder: Path, version: str) -> Path:
    file = compile_library(folder / f"libnccl.so.{version}", "", "-Wl,-soname,libnccl.so.2")
    (folder / "libnccl.so.2").symlink_to(file.name)
    return file


def metadata(site: Path, *names: str) -> None:
    for name in names:
        (site / f"{name}-info").mkdir(parents=True)


def torch(site: Path, cuda: str = "'12.4'") -> Path:
    (site / "torch" / "lib").mkdir(parents=True)
    text = f"from typing import Optional\n__version__ = '2.5.1+x'\ncuda: Optional[str] = {cuda}\n"
    (site / "torch" / "version.py").write_text(f"{text}hip: Optional[str] = None\n")
    return site / "torch" / "lib" / "libtorch_cuda.so"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of packages with NCCL's wheel; whoever loads from it needs PYTHONPATH."""
    site = tmp_path / "site"
    metadata(site, "torch-2.5.1+x.dist", "nvidia_nccl_cu12-2.21.5.dist", "Ray-2.9.3-py3.8.egg")
    metadata(site, "torchvision-0.20.dist", "nvidia_cuda_runtime-13.0.48.dist")
    if shutil.which("gcc"):
        wheel = site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        compile_library(wheel, "", "-Wl,-soname,libnccl.so.2")
    return site


def test_versions_come_from_metadata_and_the_first_folder_counts(
    site: Path, tmp_path: Path
) -> None:
    metadata(tmp_path / "later", "ray-2.10.0.dist", "numpy-1.26.4.dist")
    found = inside({"PYTHONPATH": f"{site}:{tmp_path / 'later'}:{tmp_path / 'gone'}"})
    mine = {"torch", "ray", "numpy", "nvidia-nccl-cu12", "nvidia-cuda-runtime"}
    assert {name: found["packages"][name] for name in mine} == {
        "torch": "2.5.1+x",
        "ray": "2.9.3",
        "numpy": "1.26.4",
        "nvidia-nccl-cu12": "2.21.5",
        "nvidia-cuda-runtime": "13.0.48",
    }
    assert "torchvision" not in found["packages"]
    assert found["python"] == sys.version.split()[0]


def test_torch_is_read_and_not_imported(site: Path) -> None:
    torch(site)
    (site / "torch" / "__init__.py").write_text("raise SystemExit('imported')\n")
    found = inside({"PYTHONPATH": str(site)})
    folder = str(site / "torch")
    assert found["torch"] == Torch(version="2.5.1+x", cuda="12.4", hip=None, path=folder, archs=[])


def test_torch_without_its_version_file_is_told_by_metadata(site: Path) -> None:
    found = inside({"PYTHONPATH": str(site)})
    assert found["torch"] == Torch(version="2.5.1+x", cuda=None, hip=None, path=None, archs=[])


LITERAL = 'const char* flags{} = "{}"; const char* other{} = "cannot find sm_90 in sm_";'


@needs_gcc
@pytest.mark.parametrize(
    ("cuda", "lists", "archs"),
    [
        ("'12.4'", ["sm_50 sm_90 compute_90"], ["sm_50", "sm_90", "compute_90"]),
        ("'12.8'", ["sm_90a sm_100f"], ["sm_90a", "sm_100f"]),
        ("'12.4'", ["sm_50 sm_60", "sm_90 sm_100"], []),
        ("'12.4'", ["sm_50,sm_60"], []),
        ("'12.4'", [], []),
        ("None", ["sm_50 sm_90"], []),
    ],
)
def test_architectures_are_those_of_one_string_in_the_library(
    site: Path, cuda: str, lists: list[str], archs: list[str]
) -> None:
    library = torch(site, cuda).with_name("libtorch_python.so")
    text = "".join(LITERAL.format(i, flags, i) for i, flags in enumerate(lists))
    compile_library(library, text, "-O2")
    found = inside({"PYTHONPATH": str(site)})["torch"]
    assert found
    assert found["archs"] == archs


@pytest.mark.parametrize(
    "content", [b"", b"sm_", b"\0sm_90", b"\0sm_90 " + b"sm_80 " * 400 + b"\0"]
)
def test_a_damaged_library_tells_no_architectures(site: Path, content: bytes) -> None:
    torch(site).with_name("libtorch_python.so").write_bytes(content)
    found = inside({"PYTHONPATH": str(site)})["torch"]
    assert found
    assert found["archs"] == []


@needs_gcc
@pytest.mark.parametrize(
    ("flags", "variable", "by"),
    [
        (["-Wl,--disable-new-dtags"], None, "RPATH"),
        (["-Wl,--disable-new-dtags"], "LD_LIBRARY_PATH", "RPATH"),
        (["-Wl,--disable-new-dtags"], "LD_PRELOAD", "LD_PRELOAD"),
        (["-Wl,--enable-new-dtags"], None, "RUNPATH"),
        (["-Wl,--enable-new-dtags"], "LD_LIBRARY_PATH", "LD_LIBRARY_PATH"),
        (["-Wl,--enable-new-dtags"], "LD_PRELOAD", "LD_PRELOAD"),
    ],
)
def test_the_nccl_that_is_named_is_the_one_that_the_linker_loads(
    site: Path, tmp_path: Path, flags: list[str], variable: str | None, by: str
) -> None:
    wheel = site / "nvidia" / "nccl" / "lib"
    other = nccl(tmp_path / "other", "2.19.3")
    rpath = "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib"
    user = compile_library(
        torch(site), "", "-Wl,--no-as-needed", *flags, rpath, str(wheel / "libnccl.so.2")
    )
    env = {"PYTHONPATH": str(site)}
    if variable:
        env[variable] = str(other if variable == "LD_PRELOAD" else other.parent)
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED, str(user)],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    version = "2.19.3" if by == variable else "2.21.5"
    assert inside(env)["nccl"] == {"path": loaded, "by": by, "version": version}


PROGRAM = """
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
int main(int count, char **words)
{
    if (!dlopen(words[1], RTLD_NOW)) return puts(dlerror()), 1;
    struct link_map *nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    return puts(nccl->l_name), 0;
}
"""


@needs_gcc
@pytest.mark.parametrize("library_path", [False, True])
@pytest.mark.parametrize(
    ("own", "program"),
    [
        ("--disable-new-dtags", "--disable-new-dtags"),
        ("--disable-new-dtags", "--enable-new-dtags"),
        ("--enable-new-dtags", "--disable-new-dtags"),
    ],
)
def test_links_into_an_environment_and_its_program_are_followed_as_the_linker_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, program: str, library_path: bool
) -> None:
    """The layout of conda-forge: torch/lib holds links to $PREFIX/lib, where NCCL is."""
    lib, torch_lib = tmp_path / "lib", tmp_path / "lib" / "site-packages" / "torch" / "lib"
    nccl(lib, "2.23.4")
    flags = ["-Wl,--no-as-needed", f"-Wl,{own}", "-Wl,-rpath,$ORIGIN", str(lib / "libnccl.so.2")]
    compile_library(lib / "libtorch_cuda.so", "", *flags)
    torch_lib.mkdir(parents=True)
    user = torch_lib / "libtorch_cuda.so"
    user.symlink_to(lib / "libtorch_cuda.so")
    binary, link = tmp_path / "bin" / "python3.11", tmp_path / "venv" / "python"
    for path in (binary, link):
        path.parent.mkdir()
    link.symlink_to(binary)
    command = ["gcc", "-x", "c", "-", "-o", str(binary), f"-Wl,{program}"]
    subprocess.run(
        [*command, "-Wl,-rpath,$ORIGIN/../lib", "-ldl"], input=PROGRAM.encode(), check=True
    )
    if library_path:
        monkeypatch.setenv("LD_LIBRARY_PATH", str(nccl(tmp_path / "other", "2.19.3").parent))
    ran = subprocess.run([str(link), str(user)], capture_output=True, text=True, check=False)
    found = linker.library("libnccl.so.2", [str(user)], str(link))
    if ran.returncode:
        assert "libnccl.so.2: cannot open shared object file" in ran.stdout
        assert found == linker.library("libnccl.so.2")
    else:
        assert found
        assert found["path"] == os.path.realpath(ran.stdout.strip())


WORDS = 'const char *words = "NCCL version {}+cuda12.4";'


@needs_gcc
@pytest.mark.parametrize(
    ("name", "text", "wheels", "version"),
    [
        ("libnccl.so.2", WORDS.format("2.23.4"), [], "2.23.4"),
        ("libnccl.so.2.22.3", WORDS.format("2.23.4"), [], "2.23.4"),
        ("libnccl.so.2.22.3", "", [], "2.22.3"),
        ("libnccl.so.2", "", [], None),
        ("nvidia/nccl/lib/libnccl.so.2", "", ["cu12-2.26.2"], "2.26.2"),
        ("nvidia/nccl/lib/libnccl.so.2", "", ["cu12-2.26.2", "cu13-2.27.7"], "2.26.2 or 2.27.7"),
        ("nvidia/nccl/lib/libnccl.so.2", WORDS.format("2.27.7"), ["cu12-2.26.2"], "2.27.7"),
    ],
)
def test_an_nccl_tells_its_version_by_word_name_or_the_wheel_beside_it(
    site: Path, tmp_path: Path, name: str, text: str, wheels: list[str], version: str | None
) -> None:
    """It is preloaded: the environment that would be used without that has another one."""
    other = tmp_path / "other"
    path = compile_library(other / name, text, "-Wl,-soname,libnccl.so.2")
    metadata(other, *(f"nvidia_nccl_{wheel}.dist" for wheel in wheels))
    wheel = site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    compile_library(torch(site), "", "-Wl,--no-as-needed", str(wheel))
    expected = {"path": str(path), "by": "LD_PRELOAD", "version": version}
    assert inside({"PYTHONPATH": str(site), "LD_PRELOAD": str(path)})["nccl"] == expected


@needs_gcc
def test_a_wheel_that_is_a_link_to_a_cache_is_told_by_the_environment(
    site: Path, tmp_path: Path
) -> None:
    wheel = site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    cached = tmp_path / "cache" / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    cached.parent.mkdir(parents=True)
    wheel.rename(cached)
    wheel.symlink_to(cached)
    rpath = "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib"
    compile_library(torch(site), "", "-Wl,--no-as-needed", rpath, str(wheel))
    found = inside({"PYTHONPATH": str(site)})["nccl"]
    assert found
    assert (found["path"], found["version"]) == (str(cached), "2.21.5")


@needs_gcc
def test_a_torch_that_needs_no_nccl_has_it_built_in(site: Path) -> None:
    user = compile_library(torch(site), '#include <stdio.h>\nint f(void) { return puts("x"); }')
    expected = {"path": str(user), "by": "built in", "version": None}
    assert inside({"PYTHONPATH": str(site)})["nccl"] == expected


@needs_gcc
def test_a_torch_whose_library_does_not_lead_to_nccl_preloads_the_wheel(site: Path) -> None:
    wheel = site / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    compile_library(torch(site), "", "-Wl,--no-as-needed", str(wheel))
    system = linker.library("libnccl.so.2")
    expected = system or {"path": str(wheel), "by": "wheel"}
    found = inside({"PYTHONPATH": str(site)})["nccl"]
    assert found
    assert (found["path"], found["by"]) == (expected["path"], expected["by"])


@needs_gcc
def test_a_torch_for_the_cpu_loads_none(site: Path) -> None:
    torch(site, cuda="None")
    assert inside({"PYTHONPATH": str(site)})["nccl"] is None


@needs_gcc
@pytest.mark.parametrize("damage", [b"", b"text", b"\x7fELF\x02", b"\x7fELF\x02" + bytes(200)])
def test_a_damaged_library_spoils_nothing_else(site: Path, damage: bytes) -> None:
    torch(site).write_bytes(damage)
    found = inside({"PYTHONPATH": str(site)})
    assert found["torch"] is not None
    assert found["nccl"] is None


@needs_gcc
def test_the_driver_is_asked_through_libcuda(tmp_path: Path) -> None:
    text = "int cuDriverGetVersion(int *version) { *version = 12040; return 0; }"
    compile_library(tmp_path / "libcuda.so.1", text)
    found = ask({"LD_LIBRARY_PATH": str(tmp_path)})
    assert (found["inside"]["driver_cuda"], found["nvml_cuda"]) == (12040, None)


@pytest.mark.parametrize(
    ("variable", "found"),
    [
        ({}, "libnccl-net.so"),
        ({"NCCL_NET_PLUGIN": "aws"}, "libnccl-net-aws.so"),
        ({"NCCL_NET_PLUGIN": "libnccl-net-aws.so"}, "libnccl-net-aws.so"),
        ({"NCCL_NET_PLUGIN": "other"}, None),
        ({"NCCL_NET_PLUGIN": "none"}, None),
        ({"NCCL_NET_PLUGIN": "None"}, None),
        ({"NCCL_NET_PLUGIN": "other,aws"}, "libnccl-net-aws.so"),
        ({"NCCL_NET_PLUGIN": "libother.so,,libnccl-net.so"}, "libnccl-net.so"),
    ],
)
def test_net_plugins_are_found_as_nccl_finds_them(
    tmp_path: Path, variable: dict[str, str], found: str | None
) -> None:
    for name in ("libnccl-net.so", "libnccl-net-aws.so"):
        (tmp_path / name).write_text(name)
    expected = found and {"path": str(tmp_path / found), "bytes": len(found)}
    assert inside({"LD_LIBRARY_PATH": str(tmp_path), **variable})["net_plugin"] == expected


@pytest.mark.parametrize(
    ("name", "text", "version"),
    [
        ("version.json", '{"cuda": {"name": "CUDA SDK", "version": "12.4.1"}}', "12.4.1"),
        ("version.txt", "CUDA Version 10.2.89\n", "10.2.89"),
    ],
)
def test_the_toolkit_is_told_by_its_files(
    tmp_path: Path, name: str, text: str, version: str
) -> None:
    (tmp_path / name).write_text(text)
    assert inside({"CUDA_HOME": str(tmp_path)})["toolkit"] == version


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_toolkit_without_such_files_is_told_by_nvcc(tmp_path: Path) -> None:
    told = "Cuda compilation tools, release 12.4, V12.4.131"
    program(tmp_path / "nvcc", f"echo '{told}'")
    env = {"CUDA_HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    assert inside(env)["toolkit"] == "12.4.131"


def test_the_linkers_cache_is_read_as_ldconfig_reads_it() -> None:
    ldconfig = Toolbox().which("ldconfig")
    if ldconfig is None or not Path(linker.CACHE).exists():
        pytest.skip("this machine has no ld.so.cache")
    printed = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=True).stdout
    told = re.findall(r"^\s+(\S+) \(.*\) => (\S+)$", printed, re.MULTILINE)
    assert told
    wanted: dict[str, list[str]] = {}
    for name, path in told:
        wanted.setdefault(name, []).append(path)
    some = dict(list(wanted.items())[:20])
    assert {name: linker.cached(name) for name in some} == some


def test_noise_and_files_of_the_current_folder_do_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('wrong json')\n")
    custom = tmp_path / "custom"
    custom.mkdir()
    (custom / "sitecustomize.py").write_text("print('hello', end='')\n")
    monkeypatch.chdir(tmp_path)
    assert inside({"PYTHONPATH": str(custom)})["python"] == sys.version.split()[0]
    assert not list(tmp_path.rglob("__pycache__"))


def test_an_interpreter_that_is_not_there_is_a_fact(tmp_path: Path) -> None:
    python = str(tmp_path / "python")
    found = ask({}, python)
    assert (found["silence"], found["refusal"]) == ("missing", "No such file or directory")
    Path(python).write_text("")
    found = ask({}, python)
    assert (found["silence"], found["refusal"]) == ("missing", "Permission denied")


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("exit 3", "ended with code 3 without a word"),
        ("echo no libpython >&2; exit 1", "no libpython"),
        ("kill -SEGV $$", "was ended by SIGSEGV without a word"),
        (f'PYTHONHOME=/nonexistent exec {sys.executable} "$@"', "Fatal Python error: init_fs_"),
    ],
)
def test_an_interpreter_that_does_not_start_is_a_fact(tmp_path: Path, end: str, words: str) -> None:
    found = ask({}, program(tmp_path / "python", end))
    assert (found["silence"], found["inside"]) == ("broken", None)
    assert found["refusal"].startswith(words)


def test_an_interpreter_that_ends_later_makes_unknown(tmp_path: Path) -> None:
    python = program(tmp_path / "python", f"echo {BEGAN}; echo no more memory >&2; exit 1")
    with pytest.raises(Unobservable) as raised:
        ask({}, python)
    assert str(raised.value) == f"training interpreter {python!r}: no more memory"


def test_python_is_looked_up_in_the_path_of_the_job(tmp_path: Path) -> None:
    program(tmp_path / "python3", f'exec {sys.executable} "$@"')
    (tmp_path / "empty").mkdir()
    found = ask({"PATH": f"{tmp_path}:/usr/bin:/bin"}, None)  # type: ignore[arg-type]
    assert found["asked"] == "python3"
    assert found["inside"]["executable"] == sys.executable
    assert ask({"PATH": str(tmp_path / "empty")}, None)["silence"] == "missing"  # type: ignore[arg-type]


def test_home_and_working_directory_are_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    program(tmp_path / "bin" / "python", f'exec {sys.executable} "$@"')
    monkeypatch.setenv("HOME", str(tmp_path))
    whole = str(tmp_path / "bin" / "python")
    for python, workdir in (("~/bin/python", None), ("bin/python", "~"), ("./python", "~/bin")):
        found = ask({}, python, workdir=workdir)
        assert os.path.normpath(found["asked"]) == whole
        assert found["inside"]["executable"] == sys.executable


def test_a_running_container_is_asked_through_its_engine(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is told the variables in words: by a HOME of its own it would look for containers."""
    own = f'PREFLIGHT_PROBE="$PREFLIGHT_PROBE" PYTHONPATH={site}'
    engine = tmp_path / "docker"
    program(
        engine,
        'echo "$@ $HOME $PYTHONPATH" >$0.log\n'
        f'exec env -i {own} {sys.executable} -c "$PREFLIGHT_PROBE"',
    )
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = ask(
        {"PYTHONPATH": str(site), "LD_LIBRARY_PATH": "", "HOME": "/of/the/job"},
        "python3",
        container={"engine": "docker", "name": "train"},
    )
    assert found["asked"] == "python3 in train"
    assert found["inside"]["packages"]["ray"] == "2.9.3"
    called = Path(f"{engine}.log").read_text()
    given = (f"PYTHONPATH={site}", "PREFLIGHT_PROBE", "PYTHONDONTWRITEBYTECODE")
    options = " ".join(f"--env {word}" for word in ("HOME=/of/the/job", "LD_LIBRARY_PATH=", *given))
    assert called.startswith(f"exec {options} train python3 -c ")
    assert called.endswith(f" {os.environ['HOME']} \n")


def test_what_an_engine_started_ends_by_itself() -> None:
    *program, main = source().splitlines()
    assert main == "ours.main('preflight:')"
    left = "print(_signal.alarm(0))"
    argv = [sys.executable, "-c", "\n".join([*program, left])]
    assert int(subprocess.run(argv, capture_output=True, check=True).stdout) == 10


def test_secrets_of_the_launch_environment_stay_at_home() -> None:
    env = {"WANDB_API_KEY": "(hidden)", "PATH": "/opt/bin", "NCCL_DEBUG": "INFO", "LD_PRELOAD": "x"}
    (launch,) = asked(Want({"env": env, "python": "/opt/python"}))
    assert json.loads(json.dumps(launch)) == {
        "python": "/opt/python",
        "container": None,
        "user": None,
        "workdir": None,
        "env": {"PATH": "/opt/bin", "LD_PRELOAD": "x"},
    }


@pytest.mark.parametrize(
    ("expected", "statuses"),
    [
        (None, {"a": "pass", "b": "pass", "c": "fail"}),
        ("2.4", {"a": "pass", "b": "pass", "c": "fail"}),
        ("2.4.0+cu124", {"a": "pass", "b": "pass", "c": "fail"}),
        ("2", {"a": "pass", "b": "pass", "c": "fail"}),
        ("2.4.1", {"a": "fail", "b": "fail", "c": "pass"}),
        ("2.4.0+cu12", {"a": "fail", "b": "fail", "c": "fail"}),
    ],
)
def test_an_expected_version_may_be_short_and_parity_counts_still(
    expected: str | None, statuses: dict[str, str]
) -> None:
    values = {"a": "2.4.0+cu124", "b": "2.4.0+cu124", "c": "2.4.1"}
    found = versions(values, "torch", expected)
    assert {node: verdict.status for node, verdict in found.items()} == statuses


def test_an_engine_that_refuses_is_no_broken_interpreter() -> None:
    """As podman says of a container that is there and does not run; 139 is SIGSEGV within one."""
    refused = Ran(255, "", "Error: can only create exec sessions on running containers")
    assert silence(refused, contained=True) == ""
    assert silence(Ran(139, "", ""), contained=True) == "broken"
