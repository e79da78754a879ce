"""Ranks of torch on a node: an interpreter that stays, and what it is told to do.

`hold` starts the training interpreter, which imports torch once (`torch_interpreter.py`), and
stays; `order` is another call on the same node, and gives it something to do through a socket that
is in no file and that only the same user is heard at. So what is done, with whom and for how long
is decided on the controller, and a rank that hangs costs no other import.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import socket
import struct
import time
from typing import Any, Iterator, Mapping, Sequence, TypedDict

from preflight.api import Absent, Node, Opened, Unobservable
from preflight.node.choice import subnet_of
from preflight.node.container import closed, ended, entered, see_whose
from preflight.node.kernel import is_virtual
from preflight.node.launch import DEFAULT, home
from preflight.node.launch import interpreter as named
from preflight.node.nccl_log import of_node
from preflight.node.net import interfaces, link_gbps, meeting_address
from preflight.node.nvml import Occupant, occupants
from preflight.node.software import (
    BEGAN,
    FATAL,
    NO_COMMAND,
    PASSED,
    START,
    UNSEEN,
    hidden,
    text_for,
)
from preflight.node.switch import switches
from preflight.node.toolbox import awaited, end, started

MAIN, RANK = "preflight.node.torch_interpreter.main", "preflight.node.torch_rank"
"""What runs there, and a module that it needs; imported here they would be compiled for nothing."""
MARK = "preflight:"
STAT = "/proc/stat"
IMPORT_S = 60.0
"""For torch to be imported: 2 to 6 s where its files are at hand, a minute from a slow share."""
SLACK_S = 3.0
"""Above an order's own limits, which the interpreter keeps."""
END_S = 1.0
"""For the interpreter to end when its orders do; it needs milliseconds."""
LOG, HEARD = "log", "heard"
"""Of what is told: a part of a rank's log by NCCL, and what all of them say to the controller."""
LOOKS, LOOKS_APART_S = 5, 0.02
"""How often tasks that want a CPU are counted; they come and go, so the median counts."""
HEARD_S = 2.0
"""For an order to come in through the socket, from the same node."""
KEPT = 4096
"""Bytes of standard error that are kept: its last line says why an interpreter ended."""
PEER = "3i"
"""struct ucred of unix(7): pid, uid, gid."""


class Place(TypedDict):
    """What is known of a node before anything is started there."""

    address: str
    interface: str
    subnet: str
    switch: str
    """That it is wired to there; of a bond there may be several. Empty: not known."""
    link_gbps: float
    gpus: int
    """That NVML knows: of others it is not told who computes there."""
    occupants: list[Occupant]
    wanting: int
    """Tasks that want a CPU now."""
    cpus: int
    problem: str


class Ready(TypedDict):
    """An interpreter that has imported torch, or why there is none."""

    asked: str
    """The interpreter as it was called."""
    torch: str
    """Its version; empty: there is none."""
    gpus: int
    """That it may use, by launch.env too."""
    nccl: str
    """Version of its NCCL; empty: it has none."""
    seconds: float
    """That its import took."""
    why: str
    """Why there is none."""
    lack: str
    """Of what kind that is: `none` (it or the interpreter is not installed), `broken`, `closed`
    (a container that is not looked into), `unknown`; empty: there is torch."""
    door: str
    """Where orders are taken."""


def look(node: Node, launch: Mapping[str, Any]) -> Place:
    """Return where other nodes meet this one, and who computes there."""
    network = interfaces(node, launch)
    address = meeting_address(network)
    on = [one["name"] for one in network["interfaces"] if address in one["addresses"]]
    interface = on[0] if on else ""
    return Place(
        address=address,
        interface=interface,
        subnet=subnet_of(node, address) if address else "",
        switch=switches(node, interface) if interface else "",
        link_gbps=0.0 if is_virtual(node) else link_gbps(network, address),
        gpus=counted(node),
        occupants=occupants(node),
        wanting=sorted(wanting(node) for _ in range(LOOKS))[LOOKS // 2],
        cpus=len(re.findall(r"^cpu\d", node.read(STAT) or "", re.MULTILINE)),
        problem="" if address else "it has no address that other nodes could use",
    )


def counted(node: Node) -> int:
    """Return how many GPUs NVML knows."""
    try:
        return int(node.nvml("nvmlDeviceGetCount"))
    except Unobservable:
        return 0


def wanting(node: Node) -> int:
    """Return how many tasks want a CPU, besides this one.

    In the load average are also those that wait for a disk, or for a dead mount.
    """
    time.sleep(LOOKS_APART_S)
    found = re.search(r"^procs_running (\d+)", node.read(STAT) or "", re.MULTILINE)
    return int(found.group(1)) - 1 if found else 0


def hold(node: Node, opened: Opened[Ready], launch: Mapping[str, Any]) -> Ready:
    """Start the training interpreter, have it import torch, and pass on orders until told to stop.

    Args:
        node: this node.
        opened: of the call.
        launch: of the inventory: python, container, env, user, workdir.
    """
    container = launch["container"] or {}
    python = (launch["python"] or DEFAULT) if container else named(node, launch)
    found = Ready(
        asked=python, torch="", gpus=0, nccl="", seconds=0.0, why="", lack="closed", door=""
    )
    found["why"] = closed(container)
    if found["why"]:
        return found
    try:
        see_whose(node, container, launch["user"])
        process = begun(node, launch, python)
    except Unobservable as problem:
        found["why"], found["lack"] = str(problem), "unknown"
        return found
    team = Team(process)
    try:
        told = team.hear(opened, None, ("imported", "deaf", "error"), IMPORT_S)
        found.update(imported(team, told, python, bool(container)))  # type: ignore[typeddict-item]
        folder = hidden_home(node, launch) if found["lack"] == "none" else ""
        if folder:
            found["why"] += "; " + UNSEEN.format(folder)
            found["lack"] = "unknown"
        if not found["torch"]:
            return found
        with door() as listener:
            found["door"] = listener.getsockname()[1:].decode()
            opened.ready(found)
            while waited(opened, listener, team):
                attend(listener, opened, team)
    finally:
        end(team.process, END_S)
    return found


def hidden_home(node: Node, launch: Mapping[str, Any]) -> str:
    """Return the folder of the job's user that may have torch, if the login user cannot see it."""
    own = home(node, launch["user"]) if launch["user"] and not launch["container"] else None
    return hidden(node, f"{own}/.local") if own and "HOME" not in launch["env"] else ""


def begun(node: Node, launch: Mapping[str, Any], python: str) -> Any:
    """Return the process of the training interpreter."""
    container, env = launch["container"] or {}, dict(launch["env"])
    before = ""
    if container:  # what an engine is told stands in its command line, which all users may read
        hidden = {name: env.pop(name) for name in tuple(env) if not PASSED.fullmatch(name)}
        before = f"os.environ.update({hidden!r})\n"
    ours = {"PREFLIGHT_PROBE": text_for(MAIN, MARK, before, [RANK]), "PYTHONDONTWRITEBYTECODE": "1"}
    own = home(node, launch["user"]) if launch["user"] and not container else None
    if own:
        env.setdefault("HOME", own)
    words = entered(container, env, ours)
    words[2:2] = ["--interactive"] if container else []
    program = node.which(words[0])
    if program is None:
        raise Absent(f"no program {words[0]!r}")
    more = ours if container else {**env, **ours}
    argv = [program, *words[1:], python, "-c", START]
    return started(argv, more, fed=True, leads=not container)  # orders come through an engine


def imported(
    team: Team, told: Sequence[Mapping[str, Any]], python: str, contained: bool
) -> dict[str, Any]:
    """Return what became of the import."""
    last: Mapping[str, Any] = told[-1] if told else {}
    if last.get("stage") == "imported":
        return {"lack": "", **{key: last[key] for key in ("torch", "gpus", "nccl", "seconds")}}
    if last.get("stage") == "deaf":
        words = "does not pass its standard input on to Python, and orders are given that way"
        return {"why": f"{python} {words}", "lack": "unknown"}
    if last.get("stage") == "error":
        if last["type"] == "ModuleNotFoundError" and "'torch'" in last["error"]:
            return {"why": f"no torch in {python}", "lack": "none"}
        return {"why": "import torch: {type}: {error}".format(**last), "lack": "broken"}
    if team.fds():
        return {"why": f"torch was not imported in {IMPORT_S:g} s", "lack": "unknown"}
    awaited(team.process, END_S)  # its words have ended: that of its input would be its end too
    end(team.process, END_S)
    code, words = team.process.returncode, team.last_words(python)
    if team.has_begun:
        return {"why": f"{python} ended while it imported torch: {words}", "lack": "broken"}
    # What an engine has to say, such as that there is no such container, is no word about Python.
    kind = "none" if code in NO_COMMAND else "unknown" if contained else "broken"
    return {"why": f"{python} does not start: {words}", "lack": kind}


class Team:
    """The interpreter, its words, and what it is told."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.has_begun = False
        self._tail, self._errors = b"", b""
        self._poller = select.poll()
        self._streams = {one.fileno() for one in (process.stdout, process.stderr)}
        for fd in self._streams:
            os.set_blocking(fd, False)
            self._poller.register(fd, select.POLLIN | select.POLLHUP)
        self._orders = 0

    def order(self, order: Mapping[str, Any]) -> int:
        """Tell it to do something; return the number under which it tells what comes of it."""
        self._orders += 1
        line = json.dumps({**order, "id": self._orders}).encode() + b"\n"
        with contextlib.suppress(OSError):  # it has ended: `hear` sees that
            os.write(self.process.stdin.fileno(), line)
        return self._orders

    def hear(
        self, opened: Opened[Any], number: int | None, last: Sequence[str], limit_s: float
    ) -> list[Mapping[str, Any]]:
        """Return what it tells under a number until it is at one of the last stages.

        Without that where it ends, is past its time, or the controller says stop.
        """
        told: list[Mapping[str, Any]] = []
        deadline = time.monotonic() + limit_s
        self._poller.register(opened.fileno(), select.POLLIN | select.POLLHUP)
        try:
            while self._streams and (left := deadline - time.monotonic()) > 0:
                for fd, _ in self._poller.poll(left * 1000 + 1):
                    if fd == opened.fileno():
                        return told
                    told += [one for one in self._read(fd) if one.get("id") == number]
                if told and told[-1]["stage"] in last:
                    return told
        finally:
            self._poller.unregister(opened.fileno())
        return told

    def drain(self) -> None:
        """Take what it says while nobody asked."""
        for fd in tuple(self._streams):
            with contextlib.suppress(BlockingIOError):
                self._read(fd)

    def fds(self) -> set[int]:
        """Return the descriptors that its words come through."""
        return self._streams

    def _read(self, fd: int) -> list[Mapping[str, Any]]:
        data = os.read(fd, 1 << 16)
        if not data:
            self._poller.unregister(fd)
            self._streams.discard(fd)
        if fd == self.process.stderr.fileno():
            self._errors = (self._errors + data)[-KEPT:]
            return []
        *lines, self._tail = (self._tail + data).split(b"\n")
        self.has_begun = self.has_begun or BEGAN.encode() in lines
        mark = MARK.encode()
        return [json.loads(line[len(mark) :]) for line in lines if line.startswith(mark)]

    def last_words(self, python: str) -> str:
        """Return the last line that it said before it ended."""
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        code = self.process.returncode
        words = "it does not end" if code is None else f"it {ended(code)}"
        fatal = [line for line in lines if line.startswith(FATAL)]  # frames come behind it
        words = [*lines, *fatal][-1].strip() if lines else words
        return words.split(f"{python}: ", 1)[-1].split(f"'{python}': ", 1)[-1]


@contextlib.contextmanager
def door() -> Iterator[socket.socket]:
    """Open a socket for orders, in no directory."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(b"\0preflight-" + os.urandom(16).hex().encode())
        listener.listen(8)
        yield listener


def waited(opened: Opened[Any], listener: socket.socket, team: Team) -> bool:
    """Wait for somebody at the door; False when there is to be no more."""
    while True:
        poller = select.poll()
        for fd in (opened.fileno(), listener.fileno(), *team.fds()):
            poller.register(fd, select.POLLIN | select.POLLHUP)
        ready = {fd for fd, _ in poller.poll()}
        if opened.fileno() in ready:
            return False
        if listener.fileno() in ready:
            return True
        team.drain()  # once it has ended, orders are answered all the same


def attend(listener: socket.socket, opened: Opened[Any], team: Team) -> None:
    """Take one order, and answer with what came of it."""
    with contextlib.suppress(OSError, ValueError), listener.accept()[0] as one:
        _, uid, _ = struct.unpack(
            PEER, one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(PEER))
        )
        if uid != os.getuid():
            return
        one.settimeout(HEARD_S)
        order = json.loads(one.makefile("rb").readline())
        number = team.order(order)
        last = ("listening", "over") if order["task"] == "store" else ("over",)
        limit = order["join_s"] + order["limit_s"] + SLACK_S
        told = team.hear(opened, number, last, limit)
        one.sendall(json.dumps(told).encode() + b"\n")


def order(
    node: Node,  # noqa: ARG001 - the first argument of all that is called on nodes
    opened: Opened[Mapping[str, Any]],
    door: str,
    order: Mapping[str, Any],
) -> list[Mapping[str, Any]]:
    """Give an order to the interpreter that another call on this node holds.

    It is an open call so that any number of nodes can be at it at the same time; it ends by itself.

    Returns:
        What it told of it, the last thing last; of NCCL's log what it says.

    Raises:
        Unobservable: the other call has ended.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as one:
            one.settimeout(order["join_s"] + order["limit_s"] + 2 * SLACK_S)
            one.connect(b"\0" + door.encode())
            one.sendall(json.dumps(order).encode() + b"\n")
            opened.ready({})
            told: list[Mapping[str, Any]] = json.loads(one.makefile("rb").readline() or "[]")
    except OSError as error:
        raise Unobservable(f"the training interpreter does not answer: {error}") from error
    return overheard(told)


def overheard(told: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return what was told, with what the NCCL of all ranks said of itself in place of its log."""
    logs: dict[int, str] = {}
    for one in told:
        if LOG in one:
            logs[one["rank"]] = logs.get(one["rank"], "") + one[LOG]
    others = [one for one in told if LOG not in one]
    text = "\n".join(logs.values())
    return [*others, {"stage": HEARD, HEARD: of_node(text)}] if logs else others
