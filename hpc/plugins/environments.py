"""manifest.json of an environment package (tuneplane/environment/v1), where it has one. Pure."""

from __future__ import annotations

import re

from tuneplane.contract.environments import MANIFEST as NAME
from tuneplane.contract.environments import SCHEMA
from tuneplane.record.digest import is_digest

from hpc.plugins.forms import Form

__all__ = ["NAME", "SCHEMA", "check_environment"]

_CLASS = re.compile(r"[A-Za-z_][\w]*(\.[A-Za-z_][\w]*)*:[A-Za-z_][\w]*", re.ASCII)
_URL = re.compile(r"https?://[^\s]+", re.IGNORECASE)


def check_environment(form: Form) -> None:
    """Keep every fault of the declaration in the form."""
    form.choice("schema", (SCHEMA,), required=True)
    form.text("name", limit=128)
    form.text("version", limit=128)
    form.text("domain", limit=128)
    form.text("description", limit=16 << 10, prose=True)
    protocol = form.choice("protocol", ("nemo-gym", "openenv"), required=True)
    deployment = form.choice("deployment", ("local", "remote", "container"), required=True)
    if protocol == "nemo-gym" and deployment not in ("", "local"):
        form.no("deployment", "nemo-gym runs locally only", found=deployment, allowed="local")
    _place(form, deployment)
    _verifier(form.part("verifier"), form)
    for tool in form.parts("tools", most=256):
        tool.text("name", required=True, limit=128)
        tool.text("endpoint", limit=2048)
        tool.part("schema")
        tool.only()
    if (harness := form.part("harness")) is not None:
        harness.text("plugin", required=True, limit=256)
        harness.text("version", required=True, limit=128)
        harness.text("entrypoint", required=True, limit=256, grammar=_CLASS, allowed="module.path:Class")
        harness.text("digest", grammar=is_digest, allowed="sha256:<64 hex>")
        harness.only()
    if (sandbox := form.part("sandbox")) is not None:
        sandbox.flag("required", False)
        sandbox.text("profile", limit=128)
        sandbox.only()
    form.only()


def _place(form: Form, deployment: str) -> None:
    """Where it is reached: an image and its port, or an endpoint or a fleet, never both."""
    image, endpoint, fleet = (
        form.text("image"),
        form.text("endpoint", grammar=_URL, allowed="http(s)://…"),
        form.text("fleet", limit=128),
    )
    port = form.number("image_port", 1, 65535, 0)
    if deployment == "container" and not image:
        form.no("image", "is missing; a container needs one", allowed="an image reference", code=form.codes.missing)
    elif deployment in ("local", "remote") and (image or port):
        form.no("image", f"belongs to containers, and this one is {deployment}", found=image or port, allowed="nothing")
    if deployment == "remote" and bool(endpoint) == bool(fleet):
        form.no(
            "endpoint", "needs exactly one of endpoint and fleet", found=endpoint or None, allowed="endpoint or fleet"
        )
    elif deployment in ("local", "container") and (endpoint or fleet):
        form.no(
            "endpoint",
            f"belongs to remote environments, and this one is {deployment}",
            found=endpoint or fleet,
            allowed="nothing",
        )


def _verifier(verifier: Form | None, form: Form) -> None:
    if verifier is None:
        if form.value.get("verifier") is None:
            form.missing("verifier", "kind and ref")
        return
    kind = verifier.choice("kind", ("rubric", "plugin", "endpoint", "self"), required=True)
    ref = verifier.text("ref", limit=64 << 10, prose=True)
    if kind not in ("", "self") and not ref:
        verifier.no("ref", f"is missing; {kind} needs one", allowed="text", code=form.codes.missing)
    verifier.only()
