"""The job recomputes: every way to change a package or an admission after it was made is refused before any user code runs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tuneplane.contract import schemas
from tuneplane.launch.verify import LaunchRefused, Verified, verify_inputs, verify_package
from tuneplane.record.canonical import canonical_bytes
from tuneplane.record.digest import digest_bytes
from tuneplane.record.files import read_json, replace_json


def check(made: Any, uid: int | None = None) -> Verified:
    return verify_package(
        made.root, made.run.run_id, made.run.work, made.run.admission, uid=os.getuid() if uid is None else uid
    )


def refusal(made: Any, uid: int | None = None) -> LaunchRefused:
    with pytest.raises(LaunchRefused) as caught:
        check(made, uid)
    return caught.value


def test_an_untouched_package_is_verified(make_run: Callable) -> None:
    made = make_run()
    verified = check(made)
    assert verified.files == 4
    assert verified.package_digest == read_json(made.run.package)["digest_v2"]


def edited(path: Path) -> None:
    path.write_text(path.read_text() + "# more\n")


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda w: edited(w / "experiments/exp/train.sh"), "changed, spec=sha256:"),
        (lambda w: (w / "experiments/exp/new.py").write_text("x"), "not in the list"),
        (lambda w: (w / "experiments/exp/train.sh").unlink(), "missing"),
        (lambda w: edited(w / ".tuneplane/jobspec.json"), ".tuneplane/jobspec.json: changed"),
        (lambda w: edited(w / ".tuneplane/launch.json"), ".tuneplane/launch.json: changed"),
        (lambda w: (w / "experiments/exp/train.sh").chmod(0o755), "exec bit changed"),
        (
            lambda w: (
                (w / "experiments/exp/train.sh").rename(w / "t"),
                (w / "experiments/exp/train.sh").symlink_to(w / "t"),
            ),
            "a link",
        ),
    ],
)
def test_a_package_edited_between_submit_and_start_is_refused(make_run: Callable, damage: Callable, word: str) -> None:
    made = make_run()
    made.unlock()
    damage(made.run.work)
    refused = refusal(made)
    assert refused.code == "E-JOB-002"
    assert word in refused.message


def test_a_relisted_package_is_not_the_admitted_one(make_run: Callable) -> None:
    """Editing a file and its entry in package.json gives another package digest than the admission's."""
    made = make_run()
    made.unlock()
    script = made.run.work / "experiments/exp/train.sh"
    edited(script)
    listing = read_json(made.run.package)
    for entry in listing["files"]:
        if entry["path"].endswith("train.sh"):
            entry |= {"sha256": digest_bytes(script.read_bytes()), "size": script.stat().st_size}
    made.run.package.write_text(json.dumps(listing))
    assert refusal(made).code == "E-JOB-004"


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("spec_digest", "sha256:" + "0" * 64, "E-JOB-004"),
        ("package_digest", "sha256:" + "0" * 64, "E-JOB-004"),
        ("run_id", "run-ffff", "E-JOB-004"),
        ("verdict", "refused", "E-JOB-003"),
        ("schema", "x", "E-JOB-003"),
        ("uid", 4242424, "E-JOB-005"),
    ],
)
def test_an_edited_admission_is_refused(make_run: Callable, key: str, value: Any, code: str) -> None:
    made = make_run()
    replace_json(made.run.admission, {**read_json(made.run.admission), key: value})
    assert refusal(made).code == code


def test_a_missing_admission_is_a_no(make_run: Callable) -> None:
    made = make_run()
    made.run.admission.unlink()
    assert refusal(made).code == "E-JOB-003"


def test_another_uid_cannot_run_the_admission(make_run: Callable) -> None:
    assert refusal(make_run(), uid=4242424).code == "E-JOB-005"


class TestEnforced:
    """Where the site enforces, the signature over the recomputed digests decides."""

    @pytest.fixture
    def signed(self, make_run: Callable) -> Any:
        made, self.key = make_run(), Ed25519PrivateKey.generate()
        replace_json(
            made.root.site / "policy.json",
            {"admission": {"mode": "enforced", "public_key": self.key.public_key().public_bytes_raw().hex()}},
        )
        self.write(made, {**read_json(made.run.admission), "mode": "enforced"})
        return made

    def write(self, made: Any, body: dict[str, Any], key: Ed25519PrivateKey | None = None) -> None:
        message = canonical_bytes({k: body.get(k) for k in schemas.SIGNED_KEYS})
        replace_json(made.run.admission, {**body, "signature": (key or self.key).sign(message).hex()})

    def test_the_sites_signature_is_taken(self, signed: Any) -> None:
        assert check(signed).admission["mode"] == "enforced"

    def test_an_advisory_admission_is_refused(self, signed: Any) -> None:
        self.write(signed, {**read_json(signed.run.admission), "mode": "advisory"})
        assert refusal(signed).code == "E-JOB-007"

    def test_a_forged_signature_is_refused(self, signed: Any) -> None:
        self.write(signed, read_json(signed.run.admission), Ed25519PrivateKey.generate())
        assert refusal(signed).code == "E-JOB-008"

    @pytest.mark.parametrize("key", ["owner", "admitted_at", "kernel"])
    def test_an_edit_under_the_signature_is_refused(self, signed: Any, key: str) -> None:
        replace_json(signed.run.admission, {**read_json(signed.run.admission), key: "other"})
        assert refusal(signed).code == "E-JOB-008"

    def test_a_policy_that_everybody_can_write_is_nobodys(self, signed: Any) -> None:
        (signed.root.site / "policy.json").chmod(0o666)
        assert refusal(signed).code == "E-JOB-006"


def test_an_input_that_changed_since_submission_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "d.jsonl"
    data.write_text("{}\n")
    launch = {
        "inputs": {"train": {"path": str(data), "files": [{"path": "", "size": 3, "sha256": digest_bytes(b"{}\n")}]}}
    }
    assert verify_inputs(launch) == [{"input": "train", "path": str(data), "checked": "sha256"}]
    data.write_text("[]\n")
    with pytest.raises(LaunchRefused) as caught:
        verify_inputs(launch)
    assert caught.value.code == "E-JOB-009"


def test_where_a_hash_was_too_dear_size_time_and_owner_are_compared_and_said(tmp_path: Path) -> None:
    data = tmp_path / "d.bin"
    data.write_bytes(b"x" * 9)
    info = data.stat()
    launch = {
        "inputs": {
            "model": {
                "path": str(tmp_path),
                "files": [{"path": "d.bin", "size": 9, "mtime_ns": info.st_mtime_ns, "uid": info.st_uid}],
            }
        }
    }
    assert verify_inputs(launch)[0]["checked"] == "size+mtime+owner"
    os.utime(data, ns=(1, 1))
    with pytest.raises(LaunchRefused):
        verify_inputs(launch)
