"""Which file system holds a path, from mountinfo texts of real machines."""

from __future__ import annotations

from hpc.store.mounts import mount_of, parse_mountinfo

TEXT = r"""22 28 0:20 / /proc rw,relatime shared:5 - proc proc rw
28 1 259:2 / / rw,relatime shared:1 - xfs /dev/nvme0n1p2 rw,attr2
90 28 0:51 / /scratch rw,noatime shared:60 - lustre 10.0.0.1@o2ib:/scratch rw,flock,lazystatfs
91 28 0:52 / /proj\040data rw shared:61 - nfs4 filer:/proj rw,vers=4.2,sec=krb5p,local_lock=none
92 90 0:53 / /scratch/inner rw - ext4 /dev/sdb1 rw
93 90 0:54 / /scratch/inner rw - tmpfs none rw
not a mount line
"""


def test_longest_mount_point_wins_and_later_mounts_hide_earlier_ones() -> None:
    assert mount_of("/scratch/tp/site", TEXT).fstype == "lustre"
    assert mount_of("/scratch/inner/x", TEXT).fstype == "tmpfs"
    assert mount_of("/scratchy", TEXT).fstype == "xfs"


def test_network_and_kerberos_are_seen() -> None:
    by_point = {m.point: m for m in parse_mountinfo(TEXT)}
    assert len(by_point) == 5
    assert by_point["/scratch"].network
    assert not by_point["/"].network
    assert by_point["/proj data"].kerberos
    assert "flock" in by_point["/scratch"].options


def test_this_machine_has_a_mount_for_its_root() -> None:
    assert mount_of("/").point == "/"
    assert mount_of("/").fstype != "unknown"
