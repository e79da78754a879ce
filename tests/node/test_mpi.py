"""How Open MPI's mpirun is steered, and what it says of ranks: of 4, and of 5, which is PRRTE."""

from __future__ import annotations

import signal

import pytest

from preflight.node.mpi import ENDS, parameters
from preflight.node.nccl_trials import lost

RULE = "-" * 74
OPEN_MPI_4 = """\
mpirun noticed that process rank 1 with PID 4460 on node tb1 exited on signal 9 (Killed).
"""
OPEN_MPI_5 = """\
prterun noticed that process rank 1 with PID 4460 on node tb1 exited on
signal 9 (Killed).
"""
"""As 5.0.11 wrote it."""


def test_variables_of_both() -> None:
    assert parameters("ssh -o BatchMode=yes", "preflight-1") == {
        "OMPI_MCA_plm_rsh_agent": "ssh -o BatchMode=yes",
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_preflight_run": "preflight-1",
        "PRTE_MCA_plm_ssh_agent": "ssh -o BatchMode=yes",
        "PRTE_MCA_plm_ssh_no_tree_spawn": "1",
        "PRTE_MCA_preflight_run": "preflight-1",
    }


@pytest.mark.parametrize("said", [OPEN_MPI_4, OPEN_MPI_5])
def test_a_rank_that_was_killed(said: str) -> None:
    ends = ENDS.findall(f"{RULE}\n{said}{RULE}\n")
    assert lost(ends, [0, 1], "tb1") == ("", signal.SIGKILL)
    assert lost(ends, [2, 3], "tb2") == ("", 0)
