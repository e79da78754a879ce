"""Firewalls as administrators have them: real ufw and firewalld write the rules of a node."""

from __future__ import annotations

from tests.cluster.machine import wait_until
from tests.cluster.mount_faults import MountFaults

BUS = "/run/dbus"


class Firewalls(MountFaults):
    """Firewalls with settings of a node's own, which are gone afterwards."""

    def ufw(self, node: str, *rules: str) -> None:
        """Turn on ufw, which drops what comes in but for SSH, and for what these rules let in."""
        self._own(node, "/etc/ufw", "/run/ufw.lock")
        # Nothing that is set there is of use here, and it may not be the node's alone.
        self.machines[node].write("/etc/ufw/sysctl.conf", "")
        for rule in ("allow 22/tcp", *rules, "--force enable"):
            self.run(node, "ufw", *rule.split())

    def firewalld(self, node: str, *options: str) -> None:
        """Start firewalld, which rejects what comes in but for SSH, and for what these let in.

        Args:
            node: where.
            options: of firewall-cmd; each changes what is permanent.
        """
        self._own(node, "/etc/firewalld", "/var/log/firewalld", "/run/firewalld", BUS)
        for option in options:
            self.run(node, "firewall-offline-cmd", *option.split())
        machine, socket = self.machines[node], f"{BUS}/system_bus_socket"
        machine.path(BUS).mkdir()
        self._serve(node, "dbus-daemon", "--system", "--nofork", "--nopidfile")
        wait_until(machine.path(socket).exists, f"{node}: D-Bus")
        self._serve(node, "firewalld", "--nofork", "--nopid")
        self.run(node, "sh", "-c", "until firewall-cmd --state; do :; done")

    def _own(self, node: str, settings: str, *made: str) -> None:
        """Give a node settings of its own; what is made then is removed again, and all rules."""
        copy = f"/run/settings{next(self._numbers)}"
        for path in (copy, *made):
            self._undo(self.machines[node].remove, path)
        self.run(node, "cp", "--archive", settings, copy)
        self.bind(node, copy, settings)
        self._undo(self.run, node, "nft", "flush", "ruleset")

    def _serve(self, node: str, *argv: str) -> None:
        machine = self.machines[node]
        self._undo(machine.end, machine.start(*argv))
