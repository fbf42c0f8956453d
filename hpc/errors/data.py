"""Error kinds of the data room: data sets, volumes, what jobs take in and give out of them, and the quality of rows."""

from __future__ import annotations

from hpc.errors.core import ErrorKind, table

_K = ErrorKind
KINDS: dict[str, ErrorKind] = table(
    _K("E-DATA-001", "dataset.yaml is not right", "The optional manifest has an unknown key, a value of another type, or says what the files do not.", "Correct the named key; docs/data.md lists them all."),
    _K("E-DATA-002", "a split is not right", "A glob meets no file, a file lies in two splits (training would see evaluation rows), or a split has no rows.", "Correct `splits` in dataset.yaml; each file belongs to one split."),
    _K("E-DATA-003", "a row cannot be read", "A line of a JSONL file is no JSON object, is not UTF-8, or is longer than a row may be.", "Correct the named lines. One object a line; empty lines are passed over."),
    _K("E-DATA-004", "Parquet needs pyarrow", "Rows of a Parquet file are counted and read with pyarrow, which is not installed here; nothing is guessed.", "Install tuneplane-hpc[parquet] into the environment of tp, or convert the file to JSONL."),
    _K("E-DATA-005", "no such column", "The column mapping or a group key names a column that the rows do not have.", "Name one of the columns that are listed."),
    _K("E-DATA-006", "the folder cannot be a data set", "It is missing, empty, or says another name than the one it is published under.", "Point to the folder with the files; a `name` in dataset.yaml must be the one on the command line."),
    _K("E-DATA-010", "no such split", "The data set has no split of that name, or none that a validation source could mean without naming it.", "Name a split with spec.data.….split; `tp dataset show REF` lists them."),
    _K("E-DATA-011", "no such file in the data set", "spec.data.….path names a file that the version does not hold, or one outside the split that is named.", "`tp dataset show REF --files` lists the files."),
    _K("E-DATA-012", "too many files for one job", "Each file of a split is written into the job's record; the split has more than that takes.", "Publish fewer, larger files."),
    _K("E-DATA-013", "training and validation share a file", "Both sources mean the same file, so the model would be measured on what it learned.", "Name another split, or another data set."),
    _K("E-DATA-014", "no rows that the engine reads", "The training engine reads JSONL and Parquet, from one file or several; this split has a file of another form.", "Name the files of rows in the data set's `splits`, or one of them with spec.data.….path."),
    _K("E-DATA-015", "rows or tasks do not fit the method", "The method reads no tasks, has neither rows nor tasks, or cannot ask the environment's verifier.", "Only deepspeed/grpo and trl/grpo read environments, with a verifier of the kind plugin; give it rows or tasks."),
    _K("E-DATA-020", "still referenced", "A run, a lock or a model names the version; removing it would make that record unverifiable.", "Keep it, or remove what names it first. The list shows who does."),
    _K("E-DATA-021", "the visibility cannot be set", "Only the owner changes who may read a data set or volume, the group must be one of the owner's, and the file system must keep the mode.", "Run it as the owner, with a group that `id` lists."),
    _K("E-DATA-030", "no such volume, or nothing in it", "The volume was not created, or nothing was pushed into it yet.", "`tp volume create NAME`, then `tp volume push NAME DIR`."),
    _K("E-DATA-031", "a volume cannot be mounted", "Its files cannot be read by you, or its path cannot stand in a mount.", "Ask its owner for access; `tp volume ls` shows owner and visibility."),
    _K("E-DATA-040", "the output cannot be published", "The name is not yours, the version exists, the job is an array (every element would publish the same version), or the run did not succeed.", "Choose a free version of your own; `tp dataset ls` shows what there is."),
    _K("E-DATA-041", "the produced bytes changed", "The files below out/dataset are not those whose digests the job recorded when it ended.", "Nothing was published. Run the job again."),
    _K("E-DATA-050", "too many duplicates", "The share of rows that repeat an earlier row is above spec.data.quality.max_duplicate_ratio.", "Drop the repeated rows; the record lists the first ones. `tp dataset quality` shows the figures."),
    _K("E-DATA-051", "too much overlap", "The share of training rows that also stand in spec.data.quality.overlap_with is above max_overlap_ratio: a score on it would be too good.", "Drop these rows; `tp dataset check PATH -a EVAL` lists them."),
    _K("E-DATA-052", "groups leak between splits", "The share of validation rows whose group also stands in the training split is above max_group_leak_ratio.", "Split by group; `tp dataset quality --group-key KEY` lists the groups."),
    _K("E-DATA-053", "too large for the login node", "The quality gates would read more bytes than is right on a machine that everybody shares.", "Run the named command in a CPU job; its result is kept by content digest, and the next submission uses it."),
    _K("E-DATA-054", "nothing to compare", "A gate needs rows and there are none, or a validation source that is not given.", "Give the source that the gate needs."),
    _K("E-DATA-060", "tasks.jsonl is not right", "A row is no task (id, prompt, reference, metadata, split), an id comes twice, or a prompt stands in both splits.", "Correct the named rows; docs/data.md lists the fields. Nothing was published."),
    _K("E-DATA-061", "no tasks of that split", "The operation decides the split: training reads `train`, an evaluation `eval`, and neither stands in for the other.", "Name an environment with such tasks; `tp env show REF` counts them."),
    _K("E-DATA-070", "the tokenizer cannot be used", "Lengths in tokens need the package tokenizers in the environment of tp and a folder with a tokenizer.json.", "Name a model's folder, install tokenizers, or leave --tokenizer out: lengths are in characters then."),
    _K("E-DATA-071", "the picture cannot be written", "matplotlib is missing, or the file's place or ending is not possible.", "Install tuneplane-hpc[plot], and name a .png, .svg or .pdf in a folder that is there."),
)  # fmt: skip
