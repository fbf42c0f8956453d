"""Error kinds of models: the certified table, the shelf, channels."""

from __future__ import annotations

from hpc.errors.core import ErrorKind, table

_K = ErrorKind
KINDS: dict[str, ErrorKind] = table(
    _K("E-MODEL-001", "site/models.yaml is not right", "The table of certified models has an unknown key or a value of another shape.", "An admin corrects the named key; docs/models.md shows an entry."),
    _K("E-MODEL-010", "not the certified commit", "The site stands behind one commit of this model; another one was asked for.", "Drop the revision, or ask an admin to certify the other one in site/models.yaml."),
    _K("E-MODEL-011", "not the certified architecture", "config.json of the fetched model says other values than the table asserts.", "Do not use it. An admin compares the table with the model's page."),
    _K("E-MODEL-012", "the commit must be pinned", "A model that the site has not certified may change under its name; a branch is no pin.", "Write hf:ORG/NAME@<40 digits>, or let the named command lock the commit."),
    _K("E-MODEL-020", "not a model's folder", "It holds neither config.json with safetensors nor an adapter with its adapter_config.json, or these say nothing.", "Point to the exported folder (OUT_DIR/final of a run)."),
    _K("E-MODEL-021", "weights that are no safetensors", "A safetensors header does not fit its file, an index names a shard that is missing, or weights are pickles.", "Export the model again; convert pickles with safetensors' own converter."),
    _K("E-MODEL-022", "code in a model", "Python files, or a config that asks for them (auto_map), would run in every job that loads the model.", "Use the architecture that transformers has built in, and remove the code."),
    _K("E-MODEL-023", "an empty adapter", "The adapter has no weights, or every one of its B matrices is missing: it changes nothing.", "Look at the run's report; train it again."),
    _K("E-MODEL-024", "an adapter cannot be a base", "The version holds an adapter's weights only; a job needs the whole model.", "Name the adapter's base model as model.base, and the run that made the adapter with --init-from."),
    _K("E-MODEL-030", "the run has no model to register", "It, or the attempt that was named, did not end well, or left nothing of the kind.", "`tp job status RUN` says how it ended. A folder can be registered by its path."),
    _K("E-MODEL-031", "the export changed since the run", "A file of out/final differs from the digest that the run's report has.", "Do not use it. Export from the checkpoint again."),
    _K("E-MODEL-032", "a run's folder is registered by the run", "A folder below runs/ was named; its record would not say which run made it, nor by which gates.", "`tp model register RUN NAME VERSION`."),
    _K("E-MODEL-050", "the gates did not pass", "The run that made the model has gates in its evaluation, and they failed or were never judged.", "`tp job status RUN` shows each gate; `tp eval run RUN` evaluates. `--override-gates REASON` promotes all the same, and the record says so."),
    _K("E-MODEL-040", "still referenced", "A run, a channel or another model names the version; removing it would break what can be verified.", "Point the channel elsewhere first; versions that runs used stay."),
    _K("E-MODEL-042", "a version and a channel of one name", "OWNER/NAME@WORD means one thing: a version of the name would take a channel's place, and with it the gates'.", "Choose another name; `tp model show NAME` lists versions and channels."),
    _K("E-MODEL-041", "no such channel", "Nobody has promoted a version of the model to it.", "`tp model show NAME` lists the channels; `tp model promote NAME@VERSION --to CHANNEL` makes one."),
)  # fmt: skip
