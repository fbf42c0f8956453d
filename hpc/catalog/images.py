"""References to container images, `[docker://|oras://]HOST/PATH[:TAG][@sha256:<hex>]`, and the host rule. Pure.

A name without a host means docker.io, as everywhere: a first part is a host if it has a dot or a port or is `localhost`. The agent
(`docker://`) is how the bytes travelled once; it is no part of what the image is.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from hpc.errors import Refusal

DEFAULT_HOST = "docker.io"
AGENTS = ("", "docker", "oras")
FORM = "[docker://|oras://]HOST/PATH[:TAG][@sha256:<64 hex>]"
_HOST = re.compile(r"^(?=.{1,253}(:|$))[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,5})?$")
_PART = re.compile(r"^[a-z0-9]+([._-]+[a-z0-9]+)*$")
_TAG = re.compile(r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")
_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")


@dataclass(frozen=True)
class Image:
    """A parsed reference. `tag` is `latest` where neither tag nor digest was written."""

    host: str
    path: str
    tag: str = ""
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.host}/{self.path}{f':{self.tag}' if self.tag else ''}{f'@{self.digest}' if self.digest else ''}"


def parse_image(text: str, field: str = "spec.framework.image") -> Image:
    """Parse one reference. Raises Refusal E-CATALOG-046 with the part that is wrong."""
    from spython.utils import split_uri

    agent, rest = split_uri(text)

    def no(message: str) -> Refusal:
        return Refusal("E-CATALOG-046", message, field=field, found=text, allowed=FORM)

    if text.endswith("/"):  # split_uri drops it
        raise no("ends in /")
    if agent not in AGENTS:
        raise no(f"unknown agent {agent}://")
    rest, _, digest = rest.partition("@")
    if "@" in text and not _DIGEST.match(digest):
        raise no("what follows @ is no full sha256 digest")
    first, slash, path = rest.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        first, path = DEFAULT_HOST, rest
    path, colon, tag = path.partition(":")
    if not _HOST.match(first):
        raise no(f"{first!r} is no host name")
    if not path or not all(_PART.match(p) for p in path.split("/")):
        raise no(f"{path!r} is no image path (lower-case letters, digits, . _ -)")
    if colon and not _TAG.match(tag):
        raise no(f"{tag!r} is no tag")
    return Image(first.lower(), path, tag or ("" if digest else "latest"), digest)


def check_host(image: Image, allowed_hosts: Collection[str], field: str = "spec.framework.image") -> None:
    """Raises Refusal E-CATALOG-047 unless the site allows the image's registry."""
    if image.host not in {h.lower() for h in allowed_hosts}:
        raise Refusal(
            "E-CATALOG-047",
            f"the site does not allow {image.host}",
            field=field,
            found=image.host,
            allowed=", ".join(sorted(allowed_hosts)) or "no registry at all",
        )
