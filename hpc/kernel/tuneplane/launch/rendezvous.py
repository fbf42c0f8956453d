"""Where the ranks meet: node 0 picks a port derived from the job, publishes it in the attempt's folder, the others read it.

The port lies below the usual ephemeral range and above what `ray start` keeps for its workers (10002 to 19999), as Ray does not start at a port
of its own workers. It comes from the full job id and attempt, so that neighbours on one node differ; a taken port moves on to the next.
Addresses are numeric; a name that resolves to 127.x (Debian's own host name) is replaced by the address of the route.
"""

from __future__ import annotations

import fcntl
import hashlib
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuneplane.record.files import read_json, replace_json

PORT_FIRST, PORT_LAST = 20000, 32000
_SIOCGIFADDR = 0x8915


class RendezvousError(Exception):
    """Nodes did not meet in time; the message names who is missing."""


@dataclass(frozen=True)
class Meeting:
    """Numeric address and port of rank 0's node."""

    address: str
    port: int


def candidate_ports(job_id: str, attempt: int, count: int = 64) -> list[int]:
    """Ports to try, in order; a function of the whole job id and the attempt."""
    seed = int.from_bytes(hashlib.sha256(f"{job_id}:{attempt}".encode()).digest()[:8], "big")
    span = PORT_LAST - PORT_FIRST
    return [PORT_FIRST + (seed + i * 7) % span for i in range(count)]


def free_port(ports: Sequence[int]) -> int:
    """The first port that can be bound on every address now. Raises RendezvousError."""
    for port in ports:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise RendezvousError(f"none of {len(ports)} ports from {ports[0]} on is free on this node")


def resolve(host: str) -> str:
    """IPv4 address of a host name, or an empty string."""
    try:
        return socket.gethostbyname(host)
    except OSError:
        return ""


def route_source(address: str) -> str:
    """This node's own address on the route to `address`; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str:
    """Name of the interface that carries one of this node's addresses, or an empty string."""
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                raw = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
        if socket.inet_ntoa(raw[20:24]) == address or (name == "lo" and address.startswith("127.")):
            return name
    return ""


def own_address(host: str, others: Sequence[str]) -> str:
    """The address at which other nodes reach this one. Alone, or without any name service, loopback."""
    address = resolve(host)
    if address and not address.startswith("127."):
        return address
    for other in others:
        peer = resolve(other)
        if peer:
            return address if peer.startswith("127.") and address else route_source(peer)
    return address or "127.0.0.1"


def gloo_interface(allowed: Sequence[str], master: str) -> str:
    """The interface for Gloo on this node: the first of the site's exact list that exists here, else the one on the route to rank 0."""
    here = {name for _, name in socket.if_nameindex()}
    for name in allowed:
        if name in here:
            return name
    return interface_of(route_source(master))


def publish(path: Path, host: str, others: Sequence[str], job_id: str, attempt: int) -> Meeting:
    """Node 0: choose and publish."""
    meeting = Meeting(own_address(host, others), free_port(candidate_ports(job_id, attempt)))
    replace_json(
        path, {"address": meeting.address, "port": meeting.port, "host": host, "job_id": job_id, "attempt": attempt}
    )
    return meeting


def await_meeting(
    path: Path, job_id: str, attempt: int, *, deadline_s: float, sleep: Callable[[float], None] = time.sleep
) -> Meeting:
    """The other nodes: wait for node 0's choice for this job and attempt. Raises RendezvousError."""
    waited, pause = 0.0, 0.1
    while True:
        value: Any = None
        try:
            value = read_json(path)
        except (OSError, ValueError):
            pass
        if isinstance(value, dict) and value.get("job_id") == job_id and value.get("attempt") == attempt:
            return Meeting(str(value["address"]), int(value["port"]))
        if waited >= deadline_s:
            raise RendezvousError(f"node 0 did not publish its port in {deadline_s:.0f} s ({path})")
        sleep(pause)
        waited, pause = waited + pause, min(1.0, pause * 1.5)
