"""What facts about machines mean: pure rules, each with the words a person sees."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpc.site import doctor, doctor_slurm, doctor_store
from hpc.site.findings import Finding, failed, summary
from hpc.site.model import Site
from hpc.site.sitefile import parse_site
from hpc.store.contest import Outcome
from hpc.store.mounts import Mount
from hpc.store.probe import NEEDED, Probe


def make_site(**keys: Any) -> Site:
    fleets = {"main": {"kind": "slurm"}}
    return parse_site(json.dumps({"schema": "tuneplane-hpc/site/v1", "name": "lab", "fleets": fleets, **keys}))


GPU_SITE = make_site(profiles={"h200": {"series": "h200", "gpus_per_node": 8, "partition": "gpu", "gres_type": "h200"}})
NODE = {
    "host": "n1",
    "time": "1000.5",
    "kernel": "Linux 5.14.0",
    "arch": "x86_64",
    "glibc": "2.34",
    "python": "3.9.18",
    "cpus": "96",
    "memlock": "unlimited",
    "nofile": "131072",
    "userns": "yes",
    "fuse": "yes",
    "shm": "263000000 262000000",
    "tmp": "900000000 800000000",
    "tmp_path": "/tmp",
    "interfaces": "eno1:up,ib0:up,docker0:down,lo:unknown",
    "infiniband": "mlx5_0:1:ACTIVE,mlx5_1:1:DOWN",
    "apptainer": "/usr/bin/apptainer",
    "apptainer_version": "1.4.5",
    "apptainer_setuid": "no",
    "apptainer_binds": "/etc/localtime,/etc/hosts",
    "gpu_devices": "8",
    "gpu_driver": "560.35.03",
    "gpu_visible": "0,1,2,3,4,5,6,7",
    "slurm_gpus": "8",
    "container_code": "0",
    "container_ms": "110",
    "container_memlock": "unlimited",
    "container_nv": "yes",
    "container_gpus": "8",
}
CONFIG = {
    "SLURM_VERSION": "24.11.5",
    "ClusterName": "lab",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "AccountingStoreFlags": "job_comment",
    "MaxArraySize": "1001",
    "PreemptType": "preempt/partition_prio",
    "PreemptMode": "REQUEUE",
    "KillWait": "30 sec",
    "JobRequeue": "1",
    "EnforcePartLimits": "ALL",
    "MinJobAge": "300 sec",
    "PropagateResourceLimits": "ALL",
    "PropagateResourceLimitsExcept": "MEMLOCK",
    "GresTypes": "gpu",
    "ConstrainDevices": "yes",
    "AuthInfo": "cred_expire=60",
}


def node(site: Site = GPU_SITE, **changes: str) -> dict[str, Finding]:
    """Findings about a compute node by name; an empty change takes the fact away."""
    facts = {k: v for k, v in {**NODE, **changes}.items() if v}
    return {f.name: f for f in doctor.judge_host(facts, "n1", site=site, node=True)}


def slurm(site: Site = GPU_SITE, **changes: str) -> dict[str, Finding]:
    return {f.name: f for f in doctor_slurm.judge_slurm({**CONFIG, **changes}, site)}


def test_a_good_node_fails_nothing() -> None:
    assert not failed(node().values())
    assert node()["n1.apptainer"].expect == "one mount a node, about 0.1 s"


@pytest.mark.parametrize(
    ("text", "numbers"), [("1.4.5-2", (1, 4, 5)), ("3.11.2", (3, 11, 2)), ("", ()), ("x", ()), ("24.05.4", (24, 5, 4))]
)
def test_versions_are_read_as_numbers(text: str, numbers: tuple[int, ...]) -> None:
    assert doctor.numbers(text) == numbers


def test_a_node_without_apptainer_fails_and_a_login_node_only_warns() -> None:
    assert node(apptainer="")["n1.apptainer"].status == "fail"
    (login,) = doctor.judge_apptainer({}, "login", site=GPU_SITE, node=False)
    assert login.status == "warn"
    local = make_site(fleets={"local": {"kind": "local"}})
    (embedded,) = doctor.judge_apptainer({}, "login", site=local, node=False)
    assert embedded.status == "info"


def test_p60_how_images_are_mounted_is_told() -> None:
    assert node(apptainer_setuid="yes", userns="no", fuse="missing")["n1.apptainer"].status == "ok"
    closed = node(userns="no", userns_max="0", userns_clone="0")["n1.apptainer"]
    assert (closed.status, closed.found) == ("fail", "user.max_user_namespaces=0, kernel.unprivileged_userns_clone=0")
    slow = node(fuse="closed")["n1.apptainer"]
    assert (slow.status, slow.mend) == ("warn", "mode 0666 for /dev/fuse")


def test_an_old_apptainer_fails() -> None:
    assert node(apptainer_version="1.0.3")["n1.apptainer"].status == "fail"


def test_p54_a_bind_path_that_brings_homes_back_is_found() -> None:
    assert node(apptainer_binds="/etc/hosts,/home")["n1.apptainer.binds"].found == "/home"
    assert "n1.apptainer.binds" not in node()


@pytest.mark.parametrize(
    ("limit", "ports", "status"),
    [("unlimited", "mlx5_0:1:ACTIVE", "ok"), ("8192", "mlx5_0:1:ACTIVE", "fail"), ("8192", "mlx5_0:1:DOWN", "info")],
)
def test_p45_memlock_must_be_unlimited_where_rdma_is(limit: str, ports: str, status: str) -> None:
    found = node(memlock=limit, infiniband=ports, container_memlock=limit)["n1.memlock"]
    assert found.status == status
    assert ("LimitMEMLOCK=infinity" in found.mend) is (status == "fail")


def test_p45_another_limit_in_the_container_is_found() -> None:
    assert node(container_memlock="64")["n1.container.memlock"].found == "64 inside, unlimited outside"


def test_p44_interfaces_are_checked_by_exact_name() -> None:
    site = make_site(network={"nccl_interfaces": ["ib0"], "gloo_interfaces": ["eno"], "hcas": ["mlx5_0", "mlx5_1:1"]})
    found = node(site)
    assert found["n1.nccl"].message == "nccl uses ib0"
    assert (found["n1.gloo"].status, found["n1.gloo"].found) == ("fail", "eno1, ib0")
    assert (found["n1.infiniband"].status, found["n1.infiniband"].expect) == ("fail", "mlx5_1:1")


def test_p44_several_interfaces_without_a_choice_are_a_warning() -> None:
    assert node()["n1.nccl"].status == "warn"
    assert node()["n1.nccl"].message == "nccl chooses by itself among eno1, ib0"
    assert node(interfaces="eno1:up,lo:unknown")["n1.nccl"].status == "info"


def test_p52_gpus_are_counted_against_what_slurm_gave() -> None:
    assert node()["n1.gpus"].status == "ok"
    assert node(gpu_devices="4")["n1.gpus"].message == "fewer GPU devices than Slurm gave"
    assert node(gpu_visible="unset")["n1.gpus"].status == "warn"
    unfenced = node(slurm_gpus="1", gpu_visible="0")["n1.nv"]
    assert (unfenced.status, unfenced.message) == ("warn", "--nv works, 8 devices in the container")


def test_p56_a_driver_that_needs_a_newer_c_library_is_named() -> None:
    words = "failed: nvidia-smi: /lib/libc.so.6: version `GLIBC_2.38' not found"
    found = node(container_nv=words)["n1.nv"]
    assert (found.status, found.found) == ("fail", words)
    assert "newer base" in found.mend


def test_a_container_that_does_not_start_fails_with_its_own_words() -> None:
    found = node(container_code="255", container_said="FATAL: no such file")["n1.container"]
    assert (found.status, found.found) == ("fail", "FATAL: no such file")


def test_p53_little_room_is_a_warning() -> None:
    assert node(tmp="1000000 900000")["n1.scratch"].status == "warn"
    assert node(shm="65536 65536")["n1.shm"].status == "warn"
    room = doctor_store.Room("/home/a", 100 << 30, 1 << 30)
    (found,) = doctor_store.judge_places({"home": room})
    assert (found.status, found.found) == ("warn", "1.0 of 100.0 GiB free at /home/a")


def test_old_python_matters_only_without_an_image() -> None:
    assert node()["n1.machine"].status == "warn"
    assert node(python="3.11.2")["n1.machine"].status == "info"


def test_the_same_root_is_known_by_its_bytes() -> None:
    def verdict(seen: str) -> str:
        return doctor.judge_root({"site_sha256": seen}, "n1", site_sha256="abc").status

    assert [verdict("abc"), verdict(""), verdict("xyz")] == ["ok", "fail", "fail"]


@pytest.mark.parametrize(
    ("there", "status"), [("100", "ok"), ("96", "ok"), ("94", "warn"), ("250", "warn"), ("", "warn")]
)
def test_clocks_are_compared_with_the_moments_around(there: str, status: str) -> None:
    assert doctor.judge_clock({"time": there}, "n1", earliest=100, latest=120).status == status


def test_p73_a_missing_ticket_fails_on_a_kerberos_mount_only() -> None:
    assert doctor.judge_ticket({}, "n1", kerberos=False) == []
    assert doctor.judge_ticket({"ticket": "no"}, "n1", kerberos=True)[0].status == "fail"
    assert doctor.judge_ticket({"ticket": "yes"}, "n1", kerberos=True)[0].status == "warn"


def test_p62_links_that_two_nodes_both_got_fail() -> None:
    assert doctor.judge_contest(40, 2, rounds=40).status == "ok"
    assert doctor.judge_contest(41, 2, rounds=40).status == "fail"


def test_a_good_slurm_warns_of_nothing() -> None:
    assert {f.name for f in slurm().values() if f.status in ("warn", "fail")} == set()


@pytest.mark.parametrize(
    ("key", "value", "name", "status"),
    [
        ("AccountingStorageType", "accounting_storage/none", "slurm.accounting", "warn"),
        ("AccountingStoreFlags", "(null)", "slurm.accounting", "info"),
        ("SLURM_VERSION", "20.02.7", "slurm.version", "warn"),
        ("PreemptMode", "CANCEL", "slurm.preemption", "warn"),
        ("PreemptMode", "SUSPEND,GANG", "slurm.preemption", "warn"),
        ("PreemptType", "preempt/none", "slurm.preemption", "info"),
        ("JobRequeue", "0", "slurm.requeue", "info"),
        ("EnforcePartLimits", "NO", "slurm.part_limits", "warn"),
        ("PropagateResourceLimitsExcept", "(null)", "slurm.propagation", "warn"),
        ("GresTypes", "(null)", "slurm.gpus", "fail"),
        ("ConstrainDevices", "no", "slurm.gpus", "warn"),
        ("MaxArraySize", "0", "slurm.arrays", "warn"),
    ],
)
def test_what_a_setting_means_is_told(key: str, value: str, name: str, status: str) -> None:
    assert slurm(**{key: value})[name].status == status


def test_what_to_expect_is_told_with_numbers() -> None:
    found = slurm(KillWait="5 sec", AccountingStorageType="accounting_storage/none")
    assert found["slurm.kill_wait"].message.startswith("KillWait 5 s: a save must end within the warning's 120 s")
    assert found["slurm.accounting"].expect.startswith("finished jobs are known from their own records only")
    assert found["slurm.arrays"].message == "array indices go up to 1000"
    assert found["slurm.requeue_delay"].message.startswith("a requeued job starts 60 s later")
    assert "KillWait (5 s)" in found["slurm.preemption"].expect


def test_finished_jobs_must_stay_visible_as_long_as_they_are_not_asked_for() -> None:
    found = slurm(MinJobAge="60 sec", AccountingStorageType="accounting_storage/none")["slurm.min_job_age"]
    assert (found.status, found.found) == ("warn", "MinJobAge=60")


PARTITIONS = doctor_slurm.parse_partitions(
    "PartitionName=gpu Default=NO State=UP GraceTime=60 PreemptMode=REQUEUE\n"
    "PartitionName=cpu Default=YES State=UP GraceTime=0 PreemptMode=OFF\n"
    "PartitionName=old Default=NO State=DOWN PreemptMode=OFF\n"
)
GRES = doctor_slurm.parse_gres("gpu|gpu:h200:8(S:0-1),nvme:1\ngpu|gpu:a100:4(S:0)\ncpu|(null)\n")


def test_gres_of_a_partition_is_read() -> None:
    assert GRES == {"gpu": ["gpu:h200:8(S:0-1)", "nvme:1", "gpu:a100:4(S:0)"], "cpu": []}
    assert [doctor_slurm.gpus_in(GRES["gpu"], k) for k in ("h200", "a100", "", "h100")] == [8, 4, 8, 0]
    assert [doctor_slurm.gpus_in(["gpu:4"], k) for k in ("", "h200")] == [4, 0]


@pytest.mark.parametrize(
    ("profile", "status"),
    [
        ({"partition": "gpu", "gres_type": "h200", "gpus_per_node": 8}, "ok"),
        ({"partition": "gpu", "gpus_per_node": 8}, "ok"),
        ({"partition": "gpu", "gres_type": "h100", "gpus_per_node": 8}, "fail"),
        ({"partition": "gpu", "gres_type": "a100", "gpus_per_node": 8}, "fail"),
        ({"partition": "cpu", "gres_type": "h200", "gpus_per_node": 8}, "fail"),
        ({"partition": "nope", "gpus_per_node": 8}, "fail"),
        ({"partition": "old", "gpus_per_node": 8}, "warn"),
    ],
)
def test_p49_a_profile_is_compared_with_what_the_nodes_have(profile: dict[str, Any], status: str) -> None:
    site = make_site(profiles={"p": {"series": "x", **profile}})
    (found,) = doctor_slurm.judge_profiles(site, "main", PARTITIONS, GRES)
    assert (found.name, found.status) == ("profile.p", status)


def test_a_profile_without_a_partition_takes_the_default_one() -> None:
    site = make_site(profiles={"p": {"cpus": 1, "memory_gb": 1}})
    assert doctor_slurm.judge_profiles(site, "main", PARTITIONS, GRES)[0].message == "partition cpu"
    assert doctor_slurm.judge_profiles(site, "other", PARTITIONS, GRES) == []
    none = doctor_slurm.judge_profiles(site, "main", {"gpu": PARTITIONS["gpu"]}, GRES)
    assert none[0].status == "warn"


def test_preemptible_partitions_tell_their_grace() -> None:
    (found,) = doctor_slurm.judge_grace(PARTITIONS, CONFIG)
    assert found.message == "partition gpu: PreemptMode REQUEUE, GraceTime 60 s, then KillWait 30 s"
    assert doctor_slurm.judge_grace(PARTITIONS, {**CONFIG, "PreemptType": "preempt/none"}) == []


def a_probe(fstype: str = "nfs4", skew: float = 0.0, **verdicts: str) -> Probe:
    names = dict.fromkeys((*NEEDED, "posix", "flock"), "sound") | verdicts
    outcomes = {n: Outcome(v, "detail") for n, v in names.items()}
    return Probe("/x", Mount("/x", fstype, "filer:/x", ()), outcomes, skew)


def test_p61_what_the_probe_found_is_told_and_nothing_weaker_offered() -> None:
    good = {f.name: f for f in doctor_store.judge_file_system(a_probe("ext4"))}
    assert [f.status for f in good.values()] == ["ok", "ok"]
    no_flock = {f.name: f for f in doctor_store.judge_file_system(a_probe(flock="unsound"))}["store.locks"]
    assert (no_flock.status, no_flock.found) == ("info", "flock: unsound, detail")
    assert "this host" in no_flock.message
    bad = {f.name: f for f in doctor_store.judge_file_system(a_probe(strict_soft="unsound"))}
    assert (bad["store.locks"].status, bad["store.file_system"].status) == ("fail", "fail")
    assert "no other is taken instead" in bad["store.locks"].message


def test_a_file_server_with_another_clock_is_a_warning() -> None:
    found = doctor_store.judge_file_system(a_probe(skew=-90.0))
    assert (found[-1].name, found[-1].status) == ("store.clock", "warn")


def test_summary_counts_and_decides() -> None:
    findings = [Finding("a", "ok", "x"), Finding("b", "warn", "y")]
    assert (summary(findings)["verdict"], summary(findings)["counts"]["warn"]) == ("ok", 1)
    assert summary([*findings, Finding("c", "fail", "z")])["verdict"] == "fail"
