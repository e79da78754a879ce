"""The container engine answers on every node, and the job's image is the same one there.

Why: a tag is not a version: two nodes that pulled `latest` on two days train with two
    environments. A node without the image pulls it at launch, while the others wait, or fails.
Facts: image, the id of the image; digests, those of the registry; problem, what is wrong instead,
    and words, what was said of it. An image file has its size for an id. Each user has a podman of
    its own: that of another `launch.user` is not seen.
Source: `docker image inspect`, `docker container inspect`, the same of podman; stat(2) for image
    files of enroot and apptainer, whose contents are not read. No container is started.
Fix: pull the image by its digest on all nodes.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any, Mapping, TypedDict

from preflight.api import (
    Check,
    Node,
    Ran,
    Unobservable,
    Verdict,
    Want,
    fail,
    same_everywhere,
    skip,
)
from preflight.node.container import EXEC_ENGINES, LIMIT_S, last_line, see_whose

ABSENT = ("no such", "image not known", "no container with name", "does not exist")
"""In what docker and podman say of an image or a container that is not there."""
NO_DAEMON = "is the docker daemon running"
"""In what docker says when nothing listens on its socket; podman needs no daemon."""


FORMATS = {
    "image": '[{{json .ID}}, {{json .RepoDigests}}, "running"]',
    "container": "[{{json .Image}}, [], {{json .State.Status}}]",
}
"""Of `inspect`, for docker and podman. All of it would be the environment and its secrets too."""


class Found(TypedDict):
    problem: str
    """Empty; `engine`, `daemon`, `missing`, `stopped` or `unsupported`."""
    words: str
    """What was said of the problem; of one that is stopped its state."""
    image: str | None
    digests: list[str]


def container(node: Node, asked: Mapping[str, str] | None, user: str | None) -> Found:
    """Return what the engine says of an image, or of a container that runs already.

    Raises:
        Unobservable: it does not say it, or not of those of the job's user.
    """
    if asked is None:
        return trouble("", "")
    if node.which(asked["engine"]) is None:
        return trouble("engine", "")
    if asked["engine"] not in EXEC_ENGINES:
        return image_file(node, asked.get("image") or "")
    see_whose(node, asked, user)
    kind = "image" if asked.get("image") else "container"
    name = asked.get("image") or asked["name"]
    ran = node.run(
        [asked["engine"], kind, "inspect", "--format", FORMATS[kind], name], timeout_s=LIMIT_S
    )
    if ran.code:
        return refusal(ran, asked["engine"])
    try:
        image, digests, state = json.loads(ran.out)
    except (ValueError, TypeError) as error:
        raise Unobservable(f"{asked['engine']} {kind} inspect {name!r}: no image id") from error
    return Found(
        problem="" if state == "running" else "stopped",
        words="" if state == "running" else f"its state is {state}",
        image=image.split(":")[-1],
        digests=sorted(digest.split("@")[-1] for digest in digests or []),
    )


def trouble(problem: str, words: str) -> Found:
    """Return the facts where there is no image."""
    return Found(problem=problem, words=words, image=None, digests=[])


def refusal(ran: Ran, engine: str) -> Found:
    """Return what an engine's error means.

    Raises:
        Unobservable: the login user may not ask, or it means something else.
    """
    words = last_line(ran, engine)
    low = ran.err.lower()
    if NO_DAEMON in low:
        return trouble("daemon", words)
    if any(sign in low for sign in ABSENT):
        return trouble("missing", words)
    raise Unobservable(words)


def image_file(node: Node, path: str) -> Found:
    """Return the identity of an image file, as far as stat(2) tells it."""
    if not path.startswith("/"):
        return trouble("unsupported", "")
    found = node.stat(path)
    if found is None:
        return trouble("missing", "")
    return Found(problem="", words="", image=f"{found.size:,} bytes", digests=[])


def compare(facts: Mapping[str, Found], want: Want) -> dict[str, Verdict]:
    asked = want.get("launch.container")
    if not asked:
        return dict.fromkeys(facts, skip("no launch.container in the inventory"))
    wrong = {n: problem(fact, asked) for n, fact in facts.items() if fact["problem"]}
    ids = one_id_each({n: fact for n, fact in facts.items() if n not in wrong})
    name = asked.get("image") or asked["name"]
    in_file = asked["engine"] not in EXEC_ENGINES
    found = same_everywhere(
        ids,
        "image file of" if in_file else "image",
        show=lambda value: str(value) if in_file else str(value)[:12],
        reproduce=by_hand(asked),
        fix=f"copy one file to {name} on all nodes" if in_file else None,
    )
    note = ("its contents were not compared",) if in_file else ()
    return {**wrong, **{n: replace(v, details=(*v.details, *note)) for n, v in found.items()}}


def by_hand(asked: Mapping[str, Any]) -> str:
    """Return the command that shows the image or the container."""
    name = asked.get("image") or asked["name"]
    if asked["engine"] not in EXEC_ENGINES:
        return f"ls -l {shlex.quote(name)}"
    kind = "image" if asked.get("image") else "container"
    return f"{asked['engine']} {kind} inspect {shlex.quote(name)}"


def one_id_each(facts: Mapping[str, Found]) -> dict[str, str]:
    """Return an id by node, the same one for images that share a digest of the registry.

    The id depends on the engine's storage: of one image two engines may say two ids.
    """
    ids: dict[str, str] = {}
    for fact in facts.values():
        for digest in fact["digests"]:
            ids.setdefault(digest, str(fact["image"]))
    return {
        node: next((ids[digest] for digest in fact["digests"]), str(fact["image"]))
        for node, fact in facts.items()
    }


def problem(fact: Found, asked: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a node without the image or the container."""
    engine, name = asked["engine"], asked.get("image") or asked["name"]
    words = (fact["words"],) if fact["words"] else ()
    pull = f"{engine} pull {name}" if engine in EXEC_ENGINES else f"copy it to {name}"
    again = "unpause" if fact["words"].endswith("paused") else "start"
    if fact["problem"] == "unsupported":
        return skip(f"only image files of {engine} are compared, not {name!r}")
    summary, fix = {
        "engine": (f"no {engine} on PATH", f"install {engine}"),
        "daemon": (f"{engine} does not answer", f"systemctl start {engine}"),
        "missing": (f"no image {name!r}", pull)
        if asked.get("image")
        else (f"no container {name!r}", f"start container {name!r}"),
        "stopped": (f"container {name!r} does not run", f"{engine} {again} {name}"),
    }[fact["problem"]]
    return fail(summary, details=words, fix=fix, reproduce=by_hand(asked))


CHECK = Check(
    probe=container,
    args=lambda want: (want.get("launch.container"), want.get("launch.user")),
    compare=compare,
    explains=("software.python", "software.pytorch", "software.nccl", "software.cuda"),
)
