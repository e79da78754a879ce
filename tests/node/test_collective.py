"""An interpreter that stays, and what it is told to do, with interpreters made here."""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from preflight.api import Unobservable
from preflight.node.child import Opened
from preflight.node.collective import Ready, hold, order
from preflight.node.nccl_log import LOUD
from preflight.node.toolbox import Toolbox

OTHERS = dict.fromkeys(("container", "user", "workdir"))
LAUNCH: dict[str, Any] = {**OTHERS, "python": sys.executable, "env": {}}
FAST = {"wait_s": 1.0, "join_s": 2.0, "limit_s": 2.0}
TORCH = """
__version__ = "9.9"
class Distributed:
    __name__ = "torch.distributed"
    ProcessGroupGloo = None
    def is_available(self): return {there}
    def is_nccl_available(self): return {nccl}
    class TCPStore:
        def __init__(self, *given, **named):
            {store}
            self.port = 4711
class cuda:
    class nccl:
        version = staticmethod(lambda: (2, 21, 5))
    def device_count():
        import os, pathlib
        pathlib.Path(__file__).with_name("asked").write_text(str(os.getpid()))
        return 8
import sys
sys.modules["torch.distributed"] = distributed = Distributed()
__path__ = []
"""


def opened() -> tuple[Opened, int, int]:
    """Return the node's end of an open call, where it says that it is ready, and what stops it."""
    told, out = os.pipe()
    come, stop = os.pipe()
    return Opened(1, out, come), told, stop


@contextmanager
def holding(**launch: Any) -> Iterator[Ready]:
    """Run `hold` in a thread; gives what it says once it is ready, or has ended."""
    call, told, stop = opened()
    said: list[Ready] = []
    thread = threading.Thread(
        target=lambda: said.append(hold(Toolbox(), call, {**LAUNCH, **launch}))
    )
    thread.start()
    try:
        while thread.is_alive() and not readable(told):
            thread.join(0.01)
        yield json.loads(os.read(told, 4096))["ready"] if readable(told) else said[0]
    finally:
        os.close(stop)
        thread.join(10)
        for fd in (told, call._out, call._stop):
            os.close(fd)
    assert not thread.is_alive()


def readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def lacking(**launch: Any) -> tuple[str, str]:
    """Return why there is no torch, and of what kind that is."""
    with holding(**launch) as ready:
        assert (ready["torch"], ready["door"]) == ("", "")
        return ready["lack"], ready["why"]


def ordered(door: str, **more: Any) -> list[Mapping[str, Any]]:
    call, told, stop = opened()
    try:
        return order(Toolbox(), call, door, {**FAST, "ranks": [0], **more})
    finally:
        for fd in (told, stop, call._out, call._stop):
            os.close(fd)


@pytest.fixture
def fake(tmp_path: Path) -> Any:
    """Make an interpreter that imports a torch made here."""

    def make(there: str = "True", store: str = "pass", nccl: str = "False") -> dict[str, Any]:
        folder = tmp_path / "site"
        folder.mkdir()
        (folder / "torch.py").write_text(TORCH.format(there=there, store=store, nccl=nccl))
        return {"env": {"PYTHONPATH": str(folder)}}

    return make


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_no_torch(tmp_path: Path) -> None:
    python = script(tmp_path / "python", f'exec {sys.executable} -S "$@"')
    assert lacking(python=python) == ("none", f"no torch in {python}")


def test_no_interpreter() -> None:
    words = "/nowhere/python does not start: No such file or directory"
    assert lacking(python="/nowhere/python") == ("none", words)


def test_an_interpreter_that_is_broken(tmp_path: Path) -> None:
    python = script(tmp_path / "python", "echo cannot load libpython >&2; exit 1")
    assert lacking(python=python) == ("broken", f"{python} does not start: cannot load libpython")
    python = script(
        tmp_path / "python", "echo 'Fatal Python error: no codec\n\n  <no frame>' >&2; exit 1"
    )
    words = f"{python} does not start: Fatal Python error: no codec"
    assert lacking(python=python) == ("broken", words)
    python = script(tmp_path / "python", "kill -SEGV $$")
    words = f"{python} does not start: it was ended by SIGSEGV"
    assert lacking(python=python) == ("broken", words)


def test_a_wrapper_that_keeps_the_input(tmp_path: Path, fake: Any) -> None:
    python = script(tmp_path / "python", f'exec {sys.executable} "$@" </dev/null')
    words = f"{python} does not pass its standard input on to Python, and orders are given that way"
    assert lacking(python=python, **fake()) == ("unknown", words)


def test_a_torch_without_distributed(fake: Any) -> None:
    words = "import torch: ImportError: this build of torch has no torch.distributed"
    assert lacking(**fake(there="False")) == ("broken", words)


def test_a_torch_that_ends_the_interpreter(fake: Any) -> None:
    words = f"{sys.executable} ended while it imported torch: it was ended by SIGKILL"
    launch = fake(there="__import__('os').kill(__import__('os').getpid(), 9)")
    assert lacking(**launch) == ("broken", words)


def test_a_container_that_is_not_looked_into() -> None:
    container = {"engine": "enroot", "name": "train"}
    words = "preflight does not look into enroot containers"
    assert lacking(container=container) == ("closed", words)


def test_an_image_is_not_looked_into() -> None:
    words = "the training environment is in an image, and preflight starts no containers"
    assert lacking(container={"engine": "docker", "image": "pytorch"}) == ("closed", words)


def test_a_container_is_entered_with_its_input(
    tmp_path: Path, fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "said"
    sees = """assert __import__("os").environ["WANDB_API_KEY"] == "it's secret" """
    env = {**fake(store=sees)["env"], "WANDB_API_KEY": "it's secret"}
    lines = f'echo "$@" >{said}\nwhile [ "$1" != train ]; do shift; done\nshift'
    script(tmp_path / "docker", f'{lines}\nPYTHONPATH={tmp_path}/site exec "$@"')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with holding(container={"engine": "docker", "name": "train"}, env=env) as ready:
        assert (ready["torch"], ready["why"]) == ("9.9", "")
        told = ordered(ready["door"], task="store", port=0, besides=29500)
        assert told[-1]["stage"] == "listening"
    words = said.read_text().split()
    assert "secret" not in said.read_text()  # all users of the node may read a command line
    assert words[:2] == ["exec", "--interactive"]
    assert f"PYTHONPATH={tmp_path}/site" in words


def test_a_container_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path / "docker", "echo Error: no such container: train >&2; exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    words = f"{sys.executable} does not start: Error: no such container: train"
    assert lacking(container={"engine": "docker", "name": "train"}) == ("unknown", words)


def test_orders(fake: Any) -> None:
    with holding(**fake()) as ready:
        assert (ready["torch"], ready["why"]) == ("9.9", "")
        told = ordered(ready["door"], task="store", port=0, besides=29500)
        assert [one["stage"] for one in told] == ["joined", "listening"]
        assert told[-1]["port"] == 4711
        more = {"devices": ["cpu"], "meets": [[]], "world": 1, "interface": ""}
        told = ordered(ready["door"], task="reduce", **more)
        assert [one["stage"] for one in told] == ["error", "ended", "over"]
        assert told[0]["at"] == "store"
    with pytest.raises(Unobservable, match="does not answer"):
        ordered(ready["door"], task="store", port=0, besides=29500)


def test_gpus_are_counted_by_a_process_of_its_own(fake: Any, tmp_path: Path) -> None:
    """No child of one that has woken CUDA could use a GPU."""
    with holding(**fake(nccl="True")) as ready:
        assert (ready["gpus"], ready["nccl"]) == (8, "2.21.5")
        asked = (tmp_path / "site" / "asked").read_text()
        assert not Path("/proc", asked).exists()
        told = ordered(ready["door"], task="store", port=0, besides=29500)
        assert told[-1]["stage"] == "listening"


def test_a_child_that_hangs_is_killed(fake: Any) -> None:
    hang = "__import__('signal').pause()"
    with holding(**fake(store=hang)) as ready:
        told = ordered(ready["door"], task="store", port=0, besides=29500, join_s=0.1)
        assert [one["stage"] for one in told] == ["killed", "ended", "over"]
        # It is there for the next one.
        told = ordered(ready["door"], task="store", port=0, besides=29500, join_s=0.1)
        assert [one["stage"] for one in told] == ["killed", "ended", "over"]


def test_a_child_that_dies(fake: Any) -> None:
    die = "__import__('os').kill(__import__('os').getpid(), 11)"
    with holding(**fake(store=die)) as ready:
        told = ordered(ready["door"], task="store", port=0, besides=29500)
        ended = {"id": 1, "rank": 0, "stage": "ended", "signal": 11}
        assert told == [ended, {"id": 1, "stage": "over"}]


def test_what_nccl_says_is_heard_even_if_it_hangs(fake: Any) -> None:
    line = "node1:7:8 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0\\n"
    write = f"open(os.environ['NCCL_DEBUG_FILE'], 'w').write('{line}' * 9000)"
    says = f"import os; print(os.environ['NCCL_DEBUG']); {write}"
    launch = fake(store=f"{says}; __import__('signal').pause()")
    launch["env"].update(NCCL_DEBUG="VERSION", NCCL_DEBUG_FILE="/dev/null")
    with holding(**launch) as ready:
        told = ordered(ready["door"], task="store", port=0, besides=29500, loud=LOUD)
        assert [one["stage"] for one in told] == ["killed", "ended", "over", "heard"]
        assert told[-1]["heard"]["channels"] == {"NET/Socket": (1 << 18) // (len(line) - 1)}
