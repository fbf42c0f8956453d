"""Ports, addresses and interfaces: where ranks meet."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from tuneplane.launch import rendezvous
from tuneplane.record.files import replace_json


def test_p39_neighbouring_jobs_get_different_ports_below_the_ephemeral_range() -> None:
    firsts = [rendezvous.candidate_ports(str(job), 0)[0] for job in range(1000, 1400)]
    assert len(set(firsts)) > 380
    assert rendezvous.candidate_ports("77", 0) != rendezvous.candidate_ports("77", 1)
    assert rendezvous.candidate_ports("77", 0) == rendezvous.candidate_ports("77", 0)


RAY_KEEPS = {*range(10002, 20000), 6379, 6380, 8265, 10001, 52365}
"""What `ray start` takes where it is told nothing: workers, GCS, dashboard, client server, dashboard agent (Ray 2.50 to 2.60)."""


def test_a_job_s_port_is_none_that_ray_keeps_and_lies_below_the_ephemeral_range() -> None:
    tried = {port for job in range(3000) for port in rendezvous.candidate_ports(str(job), job % 3)}
    assert tried & RAY_KEEPS == set()
    assert (min(tried), max(tried)) == (20000, 31999)


def test_p39_a_taken_port_moves_on() -> None:
    ports = rendezvous.candidate_ports("4711", 0)
    with socket.socket() as taken:
        taken.bind(("", ports[0]))
        taken.listen()
        assert rendezvous.free_port(ports) in ports[1:]


def test_p41_a_missing_node_0_is_named_after_the_deadline(tmp_path: Path) -> None:
    with pytest.raises(rendezvous.RendezvousError, match="node 0 did not publish its port in 1 s"):
        rendezvous.await_meeting(tmp_path / "rendezvous.json", "1", 0, deadline_s=1, sleep=lambda s: None)


def test_another_attempts_meeting_is_not_ours(tmp_path: Path) -> None:
    path = tmp_path / "rendezvous.json"
    replace_json(path, {"address": "10.0.0.1", "port": 1, "job_id": "1", "attempt": 0})
    with pytest.raises(rendezvous.RendezvousError):
        rendezvous.await_meeting(path, "1", 1, deadline_s=1, sleep=lambda s: None)
    assert rendezvous.await_meeting(path, "1", 0, deadline_s=1) == rendezvous.Meeting("10.0.0.1", 1)


def test_p44_the_sites_list_is_exact() -> None:
    assert rendezvous.gloo_interface(["lo0", "lo"], "127.0.0.1") == "lo"
    assert rendezvous.gloo_interface(["l"], "127.0.0.1") == "lo"  # no prefix match: the route decides


def test_publish_writes_what_await_reads(tmp_path: Path) -> None:
    path = tmp_path / "rendezvous.json"
    made = rendezvous.publish(path, "localhost", [], "9", 2)
    assert rendezvous.await_meeting(path, "9", 2, deadline_s=1) == made
