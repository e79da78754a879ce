"""Hardware that this machine does not have: GPUs, InfiniBand ports, fast network devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.cluster.machine import execute
from tests.cluster.network_faults import PYTHON
from tests.cluster.nodes import Nodes

DATA_SUBNET = "10.79.0"
"""Node N's address on the data network is DATA_SUBNET.N."""
DATA_BRIDGE = "pftb1"
DATA_PORT = "pftbw"
JUMBO = 9216
"""What the data network's switch carries."""
GIB = 1 << 30
KERNEL_MODULE = "/proc/driver"

# Holds a tap device, since one that nobody holds has no carrier. TUNSETIFF, IFF_TAP | IFF_NO_PI.
TAP = """
import fcntl, signal, struct, sys
tap = open("/dev/net/tun", "rb+", buffering=0)
fcntl.ioctl(tap, 0x400454CA, struct.pack("16sH22x", sys.argv[1].encode(), 0x1002))
print("ready", flush=True)
signal.pause()
"""


def gpu_values(
    count: int = 8,
    driver: str = "550.54.15",
    model: str = "NVIDIA H100 80GB HBM3",
    cuda: int = 12040,
    memory_gib: int = 80,
    **more: str | int,
) -> dict[str, str | int]:
    """Return what the stand-in for NVML says of a healthy node; keys as in `nvml.c`."""
    values: dict[str, str | int] = {
        "driver": driver,
        "nvml": f"12.{driver}",
        "cuda": cuda,
        "count": count,
    }
    for index in range(count):
        one: dict[str, str | int] = {
            "name": model,
            "uuid": f"GPU-00000000-0000-0000-0000-{index:012}",
            "serial": f"16542300000{index:02}",
            "vbios": "96.00.89.00.01",
            "minor": index,
            "capability": "9.0",
            "memory_total": memory_gib * GIB,
            "memory_used": 0,
            "mig": 0,
            "pci": f"00000000:{0x10 * (index + 1):02X}:00.0",
            "persistence": 1,
            "temperature": 30,
            "pcie_gen": 5,
            "pcie_gen_max": 5,
            "pcie_width": 16,
            "pcie_width_max": 16,
            "ecc_corrected": 0,
            "ecc_uncorrected": 0,
        }
        values.update({f"gpu{index}.{key}": value for key, value in one.items()})
    return {**values, **more}


class Hardware(Nodes):
    """What can be built into a node."""

    def nvml(
        self, node: str, values: Mapping[str, Any] | None = None, kernel: str | None = None
    ) -> None:
        """Give the node GPUs: libnvidia-ml.so.1 and the kernel module's version file.

        Args:
            node: where.
            values: `gpu_values()` unless given; single values may be replaced as
                `gpu_values() | {"gpu3.handle_rc": 15}`.
            kernel: version of the loaded kernel module, the library's unless given.
        """
        values = gpu_values() if values is None else values
        self.change_file(
            node,
            f"{self._library_folder()}/libnvidia-ml.so.1",
            self._built("nvml.c", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1"),
        )
        content = "".join(f"{key}={value}\n" for key, value in values.items())
        self.change_file(node, "/etc/testbed-nvml", content)
        version = kernel or values.get("driver")
        if version and self.machines[node].path(KERNEL_MODULE).is_dir():
            self._load_module(node, str(version))

    def _library_folder(self) -> str:
        return f"/usr/lib/{execute('gcc', '-print-multiarch').strip()}"

    def _load_module(self, node: str, version: str) -> None:
        if not self._mounted(node, KERNEL_MODULE):
            self.run(node, "mount", "-t", "tmpfs", "-o", "mode=555", "proc", KERNEL_MODULE)
            self._undo(self._detach, node, KERNEL_MODULE)
        line = f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Thu Feb 22 01:44:30 UTC"
        self.machines[node].write(
            f"{KERNEL_MODULE}/nvidia/version", f"{line} 2024\nGCC version:  gcc version 12.2.0\n"
        )

    def infiniband(
        self,
        node: str,
        device: str = "mlx5_0",
        state: str = "4: ACTIVE",
        rate: str = "400 Gb/sec (4X NDR)",
        link_layer: str = "InfiniBand",
        firmware: str = "28.39.1002",
    ) -> None:
        """Give the node an RDMA device with one port, as /sys/class/infiniband shows it."""
        top = f"/sys/class/infiniband/{device}"
        guid = f"b83f:d203:0000:{self.names.index(node) + 1:04}"
        files = {
            "node_type": "1: CA",
            "node_guid": guid,
            "sys_image_guid": guid,
            "fw_ver": firmware,
            "hca_type": "MT4129",
            "board_id": "MT_0000000838",
            "ports/1/state": state,
            "ports/1/phys_state": "5: LinkUp" if "ACTIVE" in state else "2: Polling",
            "ports/1/rate": rate,
            "ports/1/link_layer": link_layer,
            "ports/1/lid": "0x1",
            "ports/1/sm_lid": "0x1",
            "ports/1/sm_sl": "0",
            "ports/1/lid_mask_count": "0",
            "ports/1/cap_mask": "0xa651e848",
            "ports/1/gids/0": f"fe80:0000:0000:0000:{guid}",
            "ports/1/gid_attrs/types/0": "IB/RoCE v1",
            "ports/1/gid_attrs/ndevs/0": "ib0",
            "ports/1/counters/symbol_error": "0",
            "ports/1/counters/link_downed": "0",
        }
        for name, value in files.items():
            self.change_file(node, f"{top}/{name}", f"{value}\n")

    def add_tap(
        self, node: str, name: str, speed_mbps: int, mtu: int = 1500, address: str | None = None
    ) -> None:
        """Add a device of any speed, with a carrier; nothing answers behind it.

        sysfs and ethtool agree on its speed, other than on a veth's.
        """
        machine = self.machines[node]
        self._undo(machine.end, machine.start(PYTHON, "-c", TAP, name, says="ready"))
        self.run(
            node, "ethtool", "-s", name, *f"speed {speed_mbps} duplex full autoneg off".split()
        )
        self.run(node, "ip", "link", "set", name, "mtu", str(mtu), "up")
        if address:
            self.run(node, "ip", "addr", "add", address, "dev", name)

    def add_nic(self, node: str, name: str, speed_mbps: int = 100_000, mtu: int = 9000) -> str:
        """Put the node on a second network, made for data, and return its address there.

        The device is a bridge over a tap, which lends its speed, and a veth, which carries: so it
        has at least a veth's 10000 Mb/s.
        """
        number = self.names.index(node) + 1
        self.add_tap(node, f"{name}t", speed_mbps, mtu)
        execute("ip", "-batch", "-", stdin=self._data_network(node, f"{name}v"))
        self._undo(execute, "ip", "link", "del", f"{DATA_PORT}{number}")
        address = f"{DATA_SUBNET}.{number}"
        lines = [f"link add {name} type bridge"]
        lines += [f"link set {name}{port} mtu {mtu} master {name} up" for port in "tv"]
        lines += [f"link set {name} mtu {mtu} up", f"addr add {address}/24 dev {name}"]
        self._undo(self.run, node, "ip", "link", "del", name)
        self.machines[node].run("ip", "-batch", "-", stdin="\n".join(lines))
        return address

    def _data_network(self, node: str, peer: str) -> str:
        port, lines = f"{DATA_PORT}{self.names.index(node) + 1}", []
        if DATA_BRIDGE not in execute("ip", "-br", "link"):
            lines += [f"link add {DATA_BRIDGE} type bridge", f"link set {DATA_BRIDGE} up"]
            self._undo(execute, "ip", "link", "del", DATA_BRIDGE)
        pid = self.machines[node].pid
        lines.append(f"link add {port} type veth peer name {peer} netns {pid}")
        lines.append(f"link set {port} mtu {JUMBO} master {DATA_BRIDGE} up")
        return "\n".join(lines)
