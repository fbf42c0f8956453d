"""Error kinds of the training program. It runs in the job, where this table is not; `docs/errors.md` and a test hold the two together."""

from __future__ import annotations

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-TRAIN-001",
        "the rank's environment is incomplete",
        "A variable of the rank contract (RANK, WORLD_SIZE, TUNEPLANE_*) is missing or not a number.",
        "Start the entry through `tp submit`; by hand, set every variable that is named.",
    ),
    ErrorKind(
        "E-TRAIN-002",
        "the rank lies outside its world",
        "RANK is not below WORLD_SIZE, or LOCAL_RANK not below LOCAL_WORLD_SIZE.",
        "The launcher derives both from one shape; report it if `tp` started the job.",
    ),
    ErrorKind(
        "E-TRAIN-003",
        "launch.json cannot be used",
        "The package's .tuneplane/launch.json is missing, not JSON, or a value has the wrong type.",
        "Submit again; a package is never edited by hand.",
    ),
    ErrorKind(
        "E-TRAIN-004",
        "no model or no training rows are given",
        "The spec names no model folder or no training file.",
        "Set `model.base` and `data.train.path` in the experiment's config.yaml.",
    ),
    ErrorKind(
        "E-TRAIN-005",
        "the machine is not what the shape says",
        "Another number of ranks was started, or a rank sees fewer GPUs than its node should have.",
        "Look at the node with `tp doctor --probe`; check the profile's gpus_per_node and GPU dialect in the site file.",
    ),
    ErrorKind(
        "E-TRAIN-006",
        "rank 0 cannot listen on its port",
        "Another process took the published port between its choice and the start of training.",
        "Run the job again; the port is chosen anew for each attempt.",
    ),
    ErrorKind(
        "E-TRAIN-010",
        "unknown hyperparameter",
        "A name that the method does not declare.",
        "`tp methods deepspeed/sft` lists all names; other methods have theirs.",
    ),
    ErrorKind(
        "E-TRAIN-011",
        "a hyperparameter is out of range",
        "A value has the wrong type or lies outside the declared range.",
        "`tp methods` with the method's name shows type and range of each.",
    ),
    ErrorKind(
        "E-TRAIN-012",
        "fp16 is refused",
        "fp16 needs loss scaling, which skips steps; bf16 has the range of fp32.",
        "Use bf16 where the GPU has it, else fp32; `auto` decides by the GPU.",
    ),
    ErrorKind(
        "E-TRAIN-013",
        "model.peft cannot be used",
        "Its kind is not lora, a value is out of range, or a hyperparameter says otherwise.",
        "Give {kind: lora, dim: 16, alpha: 32}, or set lora_rank and lora_alpha alone.",
    ),
    ErrorKind(
        "E-TRAIN-014",
        "the GPU has no bf16",
        "bf16 was asked for on a GPU without it.",
        "Use precision auto or fp32, or a profile with newer GPUs.",
    ),
    ErrorKind(
        "E-TRAIN-015",
        "LoRA cannot be put there",
        "lora_targets names modules that the model does not have.",
        "Use all-linear, or names out of the list in the message.",
    ),
    ErrorKind(
        "E-TRAIN-016",
        "hyperparameters contradict each other",
        "Each is in its range, and together they mean nothing.",
        "Change one of them as the message says.",
    ),
    ErrorKind(
        "E-TRAIN-017",
        "a hyperparameter is not given",
        "It has no default: a teacher's folder, say, is the user's to choose.",
        "Set it in config.yaml under `training`, or with `--set`.",
    ),
    ErrorKind(
        "E-TRAIN-020",
        "the rows cannot be read",
        "The file is missing or not readable in the job.",
        "Check path and rights; it must lie on storage that the compute nodes see.",
    ),
    ErrorKind(
        "E-TRAIN-021",
        "a line is no row",
        "It is not JSON, or has not the form that the method reads: an answer, a preference, or a judged answer.",
        "Mend the lines that are named; each is one JSON object.",
    ),
    ErrorKind(
        "E-TRAIN-022",
        "the chat template refuses a row",
        "The model's template raised an error (roles that do not alternate, say), or the tokenizer has none.",
        "Bring the row into the form that the template wants, or give `prompt` and `completion` as text.",
    ),
    ErrorKind(
        "E-TRAIN-023",
        "the answer cannot be told from the prompt",
        "The prompt's tokens are no exact prefix of the whole row's tokens, or nothing follows them, so the loss mask would be wrong.",
        "Move white space from the start of the answer to the end of the prompt, or use a template that ends the prompt with a special token.",
    ),
    ErrorKind(
        "E-TRAIN-024",
        "a row is over-long",
        "It has more tokens than max_length, and over_long is `error`.",
        "Raise max_length, or choose over_long=truncate or over_long=skip; the counts are printed.",
    ),
    ErrorKind(
        "E-TRAIN-025",
        "no row is left",
        "Every row was empty, skipped or unfit.",
        "Raise max_length or look at the file.",
    ),
    ErrorKind(
        "E-TRAIN-030",
        "the model folder is none",
        "There is no config.json in it.",
        "Give the path of a Hugging Face model folder.",
    ),
    ErrorKind(
        "E-TRAIN-031",
        "the model has no safetensors",
        "Only pickled weights or none are there; those are not read.",
        "Convert the model to safetensors first.",
    ),
    ErrorKind(
        "E-TRAIN-032",
        "a safetensors file is damaged",
        "Its header cannot be read.",
        "Copy the model again and compare digests.",
    ),
    ErrorKind(
        "E-TRAIN-033",
        "the tokenizer cannot be loaded",
        "Files are missing, or it needs code from the folder, which is not run.",
        "Give a folder with tokenizer.json.",
    ),
    ErrorKind(
        "E-TRAIN-034",
        "the model cannot be loaded",
        "Weights and configuration do not fit together, or the architecture needs code from the folder, which is not run.",
        "Try the folder with plain transformers of the same release.",
    ),
    ErrorKind(
        "E-TRAIN-035",
        "the teacher has another vocabulary",
        "A distribution over tokens can be compared only where an id is the same token to both models.",
        "Choose a teacher of the student's family, or train on the teacher's answers as text with deepspeed/sft.",
    ),
    ErrorKind(
        "E-TRAIN-040",
        "no checkpoint of this run can be used",
        "There are checkpoints, and every one is damaged. The run does not start again in silence.",
        "Look at the reasons; to start from step 1 on purpose, submit a new run.",
    ),
    ErrorKind(
        "E-TRAIN-041",
        "the checkpoint has another number of ranks",
        "Optimiser states are cut into one part a rank.",
        "Resume with the number of ranks that is named.",
    ),
    ErrorKind(
        "E-TRAIN-042",
        "settings changed since the checkpoint",
        "A value that the numbers depend on is not the one of the checkpoint.",
        "Resume with the same settings, or submit a new run.",
    ),
    ErrorKind(
        "E-TRAIN-043",
        "model or rows changed since the checkpoint",
        "Their digests are not those of the checkpoint.",
        "Bring back the files, or submit a new run.",
    ),
    ErrorKind(
        "E-TRAIN-044",
        "the order of the rows does not continue",
        "The next sample ids are not those that the checkpoint's run had before it.",
        "This is a fault of the toolkit or of its libraries; report it with the run.",
    ),
    ErrorKind(
        "E-TRAIN-045",
        "a checkpoint could not be written",
        "The disk is full, a quota is used up, or the file system failed. The checkpoint before it stands.",
        "Make room and run `tp job resume`.",
    ),
    ErrorKind(
        "E-TRAIN-046",
        "the loss is no number any more",
        "Loss or gradient norm became NaN or infinite. The checkpoint before it stands.",
        "Lower learning_rate, add warmup_steps, check the rows near that step.",
    ),
    ErrorKind(
        "E-TRAIN-060",
        "a weight was not gathered whole",
        "A parameter has another shape in memory than the model says (a ZeRO-3 share, say).",
        "This is a fault of the toolkit or of its libraries; the checkpoint stands, report it with the run.",
    ),
    ErrorKind(
        "E-TRAIN-061",
        "the saved artefact is not what was trained",
        "Opened again, a tensor is missing, or differs in shape or norm.",
        "Check the file system; `tp job resume` exports again from the last checkpoint.",
    ),
    ErrorKind(
        "E-TRAIN-062",
        "the adapter is empty",
        "All of its lora_B tensors are zero: it would change nothing.",
        "Train for at least one step with a learning rate above 0.",
    ),
)
