"""All_reduce with nccl-tests: who has it, how it is started on several nodes, and what came of it.

Runs on the controller; what nodes do for it is in `all_reduce_perf.py` and `mpi.py`.
Sent to nodes: stdlib only, Python 3.8.
"""

from __future__ import annotations

import os
import re
import signal
import uuid
from typing import Mapping, Sequence

from preflight.api import Fleet, Want, some
from preflight.node.all_reduce_perf import LOOK_S, Found, find
from preflight.node.mesh import message
from preflight.node.mpi import (
    GO_ON_S,
    HEAR_S,
    START_S,
    STUCK_S,
    TRIAL_S,
    Outcome,
    Plan,
    measured,
    overheard,
    swept,
    tried,
)
from preflight.node.nccl_tests import Size
from preflight.node.ranks import NAME, Engine, Ranked, Run
from preflight.node.ranks import Size as Ranks

TORCH, UNSAID = "torch", "before 2.17.4"
LIMIT_S = START_S + GO_ON_S + 5 * STUCK_S
"""For a run, which keeps limits of its own."""
SLURM = ("SLURM_JOB_ID", "SLURM_CONF", "SLURM_MPI_TYPE")
"""Variables of the job in which preflight was started, for srun on the master."""
KILLED = re.compile(r"rank (\d+) with PID \d+ on node \S+\s+exited on\s+signal (\d+)")
"""Of mpirun."""
ENDED = re.compile(r"^srun: error: (\S+): tasks? \d\S*: (.*)")


class NcclTests:
    """Nodes that have it, and what they do with it.

    Args:
        fleet: the nodes.
        want: of the inventory.
        facts: by node, as `look` left them. What is found goes into them.
        nodes: those that may take part.
    """

    def __init__(
        self, fleet: Fleet, want: Want, facts: Mapping[str, Ranked], nodes: Sequence[str]
    ) -> None:
        self.fleet, self.want, self.facts = fleet, want, facts
        master = want.launch.get("master", "")
        self.nodes = sorted(nodes, key=lambda node: node != master)  # it comes first
        self.before = {node: facts[node].copy() for node in nodes}
        self.found: dict[str, Found] = {}
        self.how = ""
        """What starts it on all nodes."""
        self.mark = f"preflight-{uuid.uuid4().hex}"

    def go(self) -> str:
        """Do it on each node alone, and with all; return why not, empty if it was done."""
        why = self.unfit() or self.look()
        if why or len(self.nodes) < 2:
            return why or self.alone()
        self.how, why = self.launcher()
        why = why or self.alone() or self.all(self.how)
        for node in self.nodes if why else ():
            self.facts[node].update(self.before[node])
        return why

    def unfit(self) -> str:
        """Return why nobody need look for it."""
        if self.want.get("launch.all_reduce.engine") == TORCH:
            return "launch.all_reduce.engine is torch"
        without = [node for node in self.nodes if not self.facts[node]["gpus"]]
        return f"no GPU{self.at(without)}" if without else ""

    def at(self, nodes: Sequence[str]) -> str:
        """Return in words on which nodes something is, nothing where it is on all."""
        return f" on {some(nodes)}" if len(nodes) < len(self.nodes) else ""

    def look(self) -> str:
        """See what the nodes have; return why that will not do."""
        launch = {key: self.want.get(f"launch.{key}") for key in ("container", "user")}
        launch["env"] = self.want.get("launch.env", {})
        launch["program"] = self.want.get("launch.all_reduce.program")
        replies = self.fleet.map(find, dict.fromkeys(self.nodes, (launch,)), LOOK_S + 2)
        whys: dict[str, list[str]] = {}
        for node, reply in replies.items():
            why = message(reply) or reply.value["why"]
            if why:
                whys.setdefault(why, []).append(node)
            else:
                self.found[node] = reply.value
        if whys:
            why, nodes = next(iter(whys.items()))
            return f"{why}{self.at(nodes)}"
        return self.apart() if len(self.nodes) > 1 else ""

    def apart(self) -> str:
        """Return why what the nodes have is not for several of them."""
        bare = [node for node in self.nodes if not self.found[node]["mpi"]]
        if bare:
            program = self.found[bare[0]]["program"]
            return f"{program} was built without MPI{self.at(bare)}: build it with MPI=1"
        if len({self.found[node]["program"] for node in self.nodes}) > 1:
            return "it is not at the same place on all nodes: see launch.all_reduce.program"
        hosts = [found["host"] for found in self.found.values()]
        twice = sorted({host for host in hosts if hosts.count(host) > 1})
        if twice:
            return f"several nodes call themselves {twice[0]}, and it takes them for one"
        if self.want.get("launch.container"):
            return "its processes in containers of several nodes cannot be started as one job"
        return ""

    # ---- how ---------------------------------------------------------------------------------

    def launcher(self) -> tuple[str, str]:
        """Return what starts it on all nodes, or why nothing does."""
        master, whys = self.nodes[0], []
        there = self.found[master]["launchers"]
        ways = ["srun"] if "SLURM_JOB_ID" in os.environ else []
        for how in (*ways, "mpirun"):
            if how not in there:
                whys.append(f"no {how} on {master}")
                continue
            reply = self.fleet.call(master, tried, self.plan(how), timeout_s=2 * TRIAL_S)
            why = message(reply) or reply.value
            if not why:
                return how, ""
            self.sweep()
            whys.append(f"{how} on {master}: {why}")
        return "", "; ".join(whys)

    def plan(self, how: str, node: str = "") -> Plan:
        """Return what is to be run, on a node alone or on all."""
        nodes = [node] if node else self.nodes
        interfaces = {self.facts[one]["interface"] for one in nodes}
        return Plan(
            how=how,
            program=self.found[nodes[0]]["program"] if self.found else "",
            nodes=[[one, self.facts[one]["address"], self.ranks(one)] for one in nodes],
            interfaces=sorted(interfaces) if all(interfaces) else [],
            container=self.want.get("launch.container", {}),
            env=self.want.get("launch.env", {}),
            slurm={name: os.environ[name] for name in SLURM if name in os.environ},
            each=all(self.found[one]["each"] for one in nodes),
            mark=self.mark,
        )

    def ranks(self, node: str) -> int:
        """Return how many ranks a node has: one for each GPU, or as many as are wanted."""
        count = self.found[node]["gpus"]
        most: int = self.want.get("launch.gpus_per_node", count)
        return min(count, most)

    def sweep(self) -> None:
        """End and remove what a launcher has left behind."""
        self.fleet.map(swept, dict.fromkeys(self.nodes, (self.mark,)))

    # ---- what came of it ---------------------------------------------------------------------

    def alone(self) -> str:
        """Do it on each node that has several GPUs; return why it cannot be done."""
        plans = {node: self.plan("alone", node) for node in self.nodes if self.ranks(node) > 1}
        args = {node: (plan,) for node, plan in plans.items()}
        for node, reply in self.fleet.map(measured, args, LIMIT_S).items():
            why = message(reply) or unstarted(reply.value, self.ranks(node), 1)
            if why:
                return f"{why}{self.at([node])}"
            self.facts[node]["local"] = self.run(node, reply.value, [node])
            self.tell(node, reply.value)
        return "" if plans else "no node has several GPUs"

    def all(self, how: str) -> str:
        """Do it with all nodes; return why it cannot be done."""
        master, world = self.nodes[0], sum(map(self.ranks, self.nodes))
        reply = self.fleet.call(master, measured, self.plan(how), timeout_s=LIMIT_S)
        self.sweep()
        why = message(reply) or unstarted(reply.value, world, world)
        if why:
            return f"{how} on {master}: {why}"
        for node in self.nodes:
            self.facts[node]["run"] = self.run(node, reply.value, self.nodes)
            self.tell(node, reply.value)
        return ""

    def overhear(self, groups: Sequence[Sequence[str]]) -> None:
        """Do it once more with groups whose NCCL is to say what it does; what fails, says less."""
        alone = {group[0]: (self.plan("alone", group[0]),) for group in groups if len(group) == 1}
        args = alone if len(alone) == len(groups) else {self.nodes[0]: (self.plan(self.how),)}
        replies = self.fleet.map(overheard, args, HEAR_S + STUCK_S)
        heard = {
            host: one for reply in replies.values() for host, one in (reply.value or {}).items()
        }
        for node in (node for group in groups for node in group):
            self.facts[node]["heard"] = heard.get(self.found[node]["host"])
        if replies:
            self.sweep()

    def tell(self, node: str, outcome: Outcome) -> None:
        """Say of a node what did it."""
        told, fact = outcome["told"], self.facts[node]
        fact["engine"] = Engine(
            name=NAME,
            version=told["version"] or UNSAID,
            nccl=told["nccl"],
            command=outcome["command"],
            why="",
        )
        fact["devices"] = [f"cuda:{place}" for place in range(self.ranks(node))]
        strange = unexplained(outcome)
        if strange:
            fact["problem"], fact["local"], fact["run"] = f"{NAME}: {strange}", None, None

    def run(self, node: str, outcome: Outcome, nodes: Sequence[str]) -> Run:
        """Return what came of the ranks of a node."""
        told, seats = outcome["told"], [one for one in nodes for _ in range(self.ranks(one))]
        mine = [rank for rank, one in enumerate(seats) if one == node]
        own = [one["words"] for one in told["failures"] if one["host"] == self.found[node]["host"]]
        error, number = (own[0], 0) if own else lost(outcome["ends"], mine, node)
        if len(nodes) == 1:
            number = outcome["signal"]
        return Run(
            at="" if outcome["cut"] else told["at"],
            error=error,
            killed=outcome["killed"],
            signal=number,
            absent=[],
            rank=mine[0],
            world=len(seats),
            sizes=[of_size(size, mine) for size in told["sizes"]],
        )


def unstarted(outcome: Outcome, ranks: int, processes: int) -> str:
    """Return why what was started did not come to be one program with all ranks."""
    told = outcome["told"]
    if told["outputs"] > 1:
        alone = "was built without MPI, or with another one than this"
        return f"each of {processes} processes is alone: the program {alone}"
    if told["at"] == "store":
        words = (*outcome["ends"], outcome["problem"], f"its ranks do not meet in {START_S:g} s")
        return next(filter(None, words))
    if len(told["places"]) != ranks:
        return f"it has {len(told['places'])} ranks, not {ranks}"
    return ""


def unexplained(outcome: Outcome) -> str:
    """Return what is wrong, if it can be laid to no node, nor told by looking at pairs."""
    told = outcome["told"]
    words = [one["words"] for one in told["failures"] if not one["host"]]
    known = outcome["killed"] or outcome["cut"] or outcome["ends"] or outcome["signal"]
    if told["at"] and not known:
        words += [] if told["failures"] else [outcome["problem"] or "its output ends too soon"]
    return words[0] if words else ""


def lost(ends: Sequence[str], ranks: Sequence[int], node: str) -> tuple[str, int]:
    """Return how a rank of a node has ended badly, as its launcher says: an error, or a signal."""
    for line in ends:
        killed, ended = KILLED.search(line), ENDED.search(line)
        if killed and int(killed[1]) in ranks:
            return "", int(killed[2])
        if ended and ended[1] == node:
            return ("", signal.SIGKILL) if ended[2] == "Killed" else (ended[2], 0)
    return "", 0


def of_size(size: Size, ranks: Sequence[int]) -> Ranks:
    """Return what came of a size on the ranks of a node."""
    times = [size["ranks"][rank] for rank in ranks if rank < len(size["ranks"])]
    return Ranks(
        bytes=size["bytes"],
        count=size["count"],
        ms=size["ms"],
        busy=0.0,
        wrong=size["wrong"],
        ranks=times,
    )
