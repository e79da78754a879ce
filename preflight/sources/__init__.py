"""Where nodes come from when nobody has written an inventory: each source gives a `Cluster`.

Nothing is contacted here, and no other program is asked: what is wrong is said before that.
"""

from __future__ import annotations

from typing import NamedTuple

from preflight.inventory import Cluster


class Found(NamedTuple):
    """A cluster, and what a person should know of how it was made."""

    cluster: Cluster
    origin: str
    """Such as `the host file hosts.txt`."""
    notes: tuple[str, ...] = ()
    """What was not taken as it is written, one line each."""
