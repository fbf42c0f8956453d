"""Error kinds of files that come from a hub: fetching them into the shared cache, and finding them there."""

from __future__ import annotations

from tuneplane.contract import exits

from hpc.errors.core import ErrorKind, table

_K = ErrorKind
KINDS: dict[str, ErrorKind] = table(
    _K("E-HUB-001", "a hub that is not fetched from", "Files are fetched from Hugging Face (hf:) only; ModelScope (ms:) is read in references and has no client here.", "Name the same repository on Hugging Face, or download it yourself and give its path or register it."),
    _K("E-HUB-002", "not the name of a repository or revision", "A repository is ORG/NAME, a revision a branch, a tag or a commit; `--`, `..` and a trailing `.git` cannot be told apart in the cache.", "Write hf:ORG/NAME."),
    _K("E-HUB-003", "a path that leaves its folder", "The hub, a config or a lock names a file by a path with `..`, a leading slash, a backslash or a control character.", "Do not use the repository or the file; name files by plain relative paths."),
    _K("E-HUB-004", "weights only as pickles", "A pickle runs code when it is opened, so it is never fetched. The repository has no safetensors.", "Use a revision with safetensors (many repositories have one as refs/pr/N), or convert it and register the folder."),
    _K("E-HUB-005", "nothing to fetch", "No file of the repository is one that this kind takes, or none matches --file.", "Look at the repository's files; a model needs safetensors, a data set JSONL, JSON or Parquet."),
    _K("E-HUB-006", "the experiment takes nothing from a hub", "Its config names no hf: model or data set of that kind; models and data sets of this platform need no fetching.", "Write model.base or data.train.dataset as hf:ORG/NAME, or fetch with --repo."),
    _K("E-HUB-007", "a model and a data set of one name", "The cache holds both, and the name alone does not say which is meant.", "Add --type model or --type dataset."),
    _K("E-HUB-008", "which file of the data set", "The data set has several files, and neither one alone nor one whole set of shards (name-00000-of-00003) is named after the split.", "Name it with spec.data.….path (--train-data with --train-dataset)."),
    _K("E-HUB-010", "the hub does not answer", "No connection, or errors of the server, after every try. What was fetched is kept.", "Run the same command again later: it goes on where it stopped. Behind a proxy set HTTPS_PROXY, with a mirror HF_ENDPOINT.", exits.TRY_LATER),
    _K("E-HUB-011", "the hub has no such thing", "The repository, the revision or the file does not exist there (404); another try would not help.", "Check name and revision. A private repository looks the same to those who may not see it."),
    _K("E-HUB-012", "the repository is gated", "Its authors ask for an agreement first.", "Open its page on the hub, accept the terms, and try again with a token in HF_TOKEN or after `hf auth login`."),
    _K("E-HUB-013", "the hub does not know you (401)", "The repository is private or does not exist, or the token is not valid.", "Log in with `hf auth login`, or set HF_TOKEN; check the name."),
    _K("E-HUB-014", "the hub does not let you (403)", "The token has no right to this repository.", "Ask its owners, or use a token that may read it."),
    _K("E-HUB-015", "not the bytes that the hub announced", "Length or digest of a file differ from what the hub says about the commit. The file was dropped.", "Try again; if it stays, a proxy or a mirror on the way changes files."),
    _K("E-HUB-016", "this shell is offline", "HF_HUB_OFFLINE is set, so nothing may be fetched.", "Unset HF_HUB_OFFLINE on a host with a connection."),
    _K("E-HUB-017", "the hub refuses the request", "An answer that another try would not change.", "Read what it says; check HF_ENDPOINT."),
    _K("E-HUB-020", "not downloaded", "The shared cache does not hold the repository at that commit, and jobs are never online.", "Run the named prefetch command on a host with a connection."),
    _K("E-HUB-021", "a cached file is missing", "The snapshot lacks a file that was fetched once.", "Fetch it again with the named prefetch command."),
    _K("E-HUB-022", "a cached file was changed", "Its bytes are not those that the hub announced for the commit.", "The command that is named replaces it; if the file is somebody else's, they or an admin remove it first."),
    _K("E-HUB-023", "the cache is not in the hub's layout", "A snapshot's entry is no link into its own repository's blobs: the cache was moved, copied without links, or edited.", "Remove the snapshot and fetch it again with the named prefetch command."),
    _K("E-HUB-024", "the shared cache cannot be written", "cache/hf/hub and cache/hf/assets are not there, or you are not in the group that may fill them.", "An admin runs `tp site init` again on the root; ask for membership in the users' group."),
)  # fmt: skip
