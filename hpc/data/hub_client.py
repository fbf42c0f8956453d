"""Talks to a hub that speaks Hugging Face's protocol, through huggingface_hub: its address, token, proxies and error answers are that library's.

Two questions only: what a revision is, and the bytes of a file from an offset on. Whatever may pass is a PassingError; what will not is a refusal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from tuneplane.record.digest import PREFIX

from hpc.data.hub_choice import RemoteFile, require_path
from hpc.data.hub_names import GIT_PREFIX, MAIN, Repo, is_commit, is_content_digest
from hpc.data.retry import LASTING, PassingError
from hpc.errors.core import Refusal

PLAN_TIMEOUT_S = 30.0
READ_TIMEOUT_S = 20.0
BLOCK = 1 << 20


@dataclass(frozen=True)
class Listing:
    """One commit of a repository as the hub tells it."""

    commit: str
    files: tuple[RemoteFile, ...]


class Body(Protocol):
    """A file on its way: `start` is the offset of the first byte that comes, `size` the whole file's length as the server says (-1: it does not)."""

    start: int
    size: int

    def __iter__(self) -> Iterator[bytes]: ...


class Hub(Protocol):
    """What prefetching needs of a hub."""

    endpoint: str

    def listing(self, repo: Repo, revision: str) -> Listing:
        """Raises PassingError, Refusal E-HUB-003, E-HUB-011 … E-HUB-017."""

    def body(self, repo: Repo, commit: str, path: str, offset: int) -> Any:
        """A context manager that gives a Body. Raises as `listing`, also while the bytes come."""


def _plain_rest(response: Any) -> int:
    """Bytes of a body that stand on the connection as they are, 0 where they are framed or coded, or the library hands out no connection."""
    length, framed = response.headers.get("Content-Length", ""), "Transfer-Encoding" in response.headers
    plain = (
        response.extensions.get("http_version") == b"HTTP/1.1"
        and response.headers.get("Content-Encoding", "identity") == "identity"
    )
    return int(length) if plain and not framed and length.isdigit() and "network_stream" in response.extensions else 0


def _blocks(stream: Any, left: int) -> Iterator[bytes]:
    while left > 0:
        block = stream.read(min(left, BLOCK), timeout=READ_TIMEOUT_S)
        if not block:
            raise PassingError(f"the connection ended with {left} bytes to come")
        left -= len(block)
        yield block


@dataclass
class _Stream:
    start: int
    size: int
    response: Any

    def __iter__(self) -> Iterator[bytes]:
        with _worded("reading"):
            pieces = self.response.iter_raw()
            if (rest := _plain_rest(self.response)) > BLOCK:
                # What was parsed with the headers comes first; the rest is taken from the connection in blocks, without a parser between.
                first = next(pieces, b"")
                yield first
                yield from _blocks(self.response.extensions["network_stream"], rest - len(first))
            else:
                yield from pieces


class HuggingFace:
    """The hub at HF_ENDPOINT (huggingface.co by default), with the caller's token."""

    def __init__(self, endpoint: str = "") -> None:
        # One question about a commit and one a file: nothing else is told to anybody. The library reads this when it is imported.
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
        from huggingface_hub import constants

        if constants.HF_HUB_OFFLINE:
            raise Refusal("E-HUB-016", "HF_HUB_OFFLINE is set", field="HF_HUB_OFFLINE", found="1")
        self.endpoint = endpoint or constants.ENDPOINT

    def listing(self, repo: Repo, revision: str) -> Listing:
        from huggingface_hub import HfApi

        api = HfApi(endpoint=self.endpoint)
        ask = api.model_info if repo.type == "model" else api.dataset_info
        try:
            with _worded(f"asking for {repo}"):
                info = ask(repo.id, revision=revision or MAIN, timeout=PLAN_TIMEOUT_S, files_metadata=True)
            commit, files = str(info.sha or ""), tuple(_remote(s) for s in info.siblings or ())
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            words = f"an answer that is not understood: {exc}"[:300]
            raise Refusal("E-HUB-017", words, field=str(repo), found=self.endpoint) from exc
        if not is_commit(commit):
            raise Refusal("E-HUB-017", "the hub names no commit", field=str(repo), found=commit[:80])
        return Listing(commit, files)

    @contextmanager
    def body(self, repo: Repo, commit: str, path: str, offset: int) -> Iterator[Body]:
        from huggingface_hub import hf_hub_url
        from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status

        url = hf_hub_url(repo.id, path, repo_type=repo.type, revision=commit, endpoint=self.endpoint)
        headers = {**build_hf_headers(), "Accept-Encoding": "identity"}
        if offset:
            headers["Range"] = f"bytes={offset}-"
        stream = get_session().stream("GET", url, headers=headers, timeout=READ_TIMEOUT_S, follow_redirects=True)
        with ExitStack() as stack:
            with _worded(f"fetching {path}"):
                response = stack.enter_context(stream)
                if response.status_code >= 300:
                    response.read()
                hf_raise_for_status(response)
            yield _Stream(*_span(response, offset), response)


def _remote(sibling: Any) -> RemoteFile:
    path, size = str(sibling.rfilename), sibling.size
    require_path(path)
    lfs = sibling.lfs
    digest = PREFIX + str(lfs["sha256"] if isinstance(lfs, dict) else lfs.sha256) if lfs else ""
    digest = digest or GIT_PREFIX + str(sibling.blob_id)
    # The digest becomes the file's name in the cache.
    if not is_content_digest(digest):
        raise Refusal("E-HUB-017", "the hub states no digest", field=path, found=digest[:80])
    if type(size) is not int or size < 0:
        raise Refusal("E-HUB-017", "the hub states no size", field=path, found=str(size)[:80])
    return RemoteFile(path, size, digest)


def _span(response: Any, offset: int) -> tuple[int, int]:
    """(offset of the first byte, length of the whole file or -1) of an answer."""
    length = response.headers.get("Content-Length", "")
    if response.status_code != 206:
        return 0, int(length) if length.isdigit() else -1
    unit, _, rest = response.headers.get("Content-Range", "").partition(" ")
    span, _, total = rest.partition("/")
    start = span.partition("-")[0]
    if unit != "bytes" or start != str(offset):
        raise PassingError(f"asked for bytes from {offset} on, and got {rest[:80] or 'no Content-Range'}")
    return offset, int(total) if total.isdigit() else -1


@contextmanager
def _worded(doing: str) -> Iterator[None]:
    """Errors of the library and of the connection as a PassingError or a refusal."""
    import httpcore2
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except OfflineModeIsEnabled as exc:
        raise Refusal("E-HUB-016", "HF_HUB_OFFLINE is set", field="HF_HUB_OFFLINE", found="1") from exc
    except HfHubHTTPError as exc:
        raise _answer(exc, doing) from exc
    except (httpx2.UnsupportedProtocol, httpx2.TooManyRedirects, httpx2.InvalidURL) as exc:
        raise Refusal("E-HUB-017", f"{doing}: {exc}", field="HF_ENDPOINT", found=str(exc)) from exc
    except (
        httpx2.TransportError, httpx2.StreamError, httpx2.DecodingError, httpcore2.NetworkError, httpcore2.TimeoutException
    ) as exc:  # fmt: skip
        words = str(exc) or type(exc).__name__
        raise PassingError(f"{doing}: {words}") from exc


def _answer(exc: Any, doing: str) -> Exception:
    from huggingface_hub.errors import GatedRepoError

    status = int(exc.response.status_code)
    words = f"{doing}: the hub says {status} {exc.response.reason_phrase}"
    if status not in LASTING:
        after = exc.response.headers.get("Retry-After", "")
        return PassingError(words, float(after) if after.isdigit() else 0.0)
    code = {401: "E-HUB-013", 403: "E-HUB-014", 404: "E-HUB-011", 410: "E-HUB-011"}.get(status, "E-HUB-017")
    if isinstance(exc, GatedRepoError):
        code = "E-HUB-012"
    said = exc.response.headers.get("X-Error-Message") or exc.response.headers.get("X-Error-Code") or ""
    return Refusal(code, words, field=doing.rpartition(" ")[2], found=said[:200] or str(status))
