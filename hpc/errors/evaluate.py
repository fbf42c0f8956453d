"""Error kinds of evaluation: asking a model, its answers, reports, gates. The first ones are refusals of the program in the job."""

from __future__ import annotations

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-EVAL-002",
        "there is nothing to ask",
        "The file of rows is empty.",
        "Give a JSONL file with one question and its answer a line.",
    ),
    ErrorKind(
        "E-EVAL-003",
        "a question stands twice",
        "Two rows ask the same but for case and white space, and would count twice.",
        "Remove one of them, or set repeats=first to keep the first of each.",
    ),
    ErrorKind(
        "E-EVAL-010",
        "the predictions are not those of the questions",
        "A question has no prediction or several, or there is one for a question that was not asked. No report is written.",
        "Run the evaluation again into an empty folder; predictions of other programs need one line for each id of inputs.jsonl.",
    ),
    ErrorKind(
        "E-EVAL-011",
        "the predictions cannot be read",
        "The file is not readable here.",
        "Check path and rights.",
    ),
    ErrorKind(
        "E-EVAL-012",
        "a line is no prediction",
        "It is not a JSON object of id, text, latency_ms, tokens and cut, or a number in it is negative or broken.",
        "Mend the line that is named.",
    ),
    ErrorKind(
        "E-EVAL-013",
        "the folder holds another evaluation",
        "Its predictions rest on another model, other data, settings or releases, or on something unknown.",
        "Give an empty folder with --out, or bring back what is named.",
    ),
    ErrorKind(
        "E-EVAL-020",
        "not a baseline",
        "evaluation.baseline is neither base nor a run nor a model.",
        "Write base, run/<run_id>, or the model's reference or path.",
    ),
    ErrorKind(
        "E-EVAL-030",
        "unknown setting",
        "A name that evalkit/behaviour does not declare.",
        "`tp methods evalkit/behaviour` lists all names.",
    ),
    ErrorKind(
        "E-EVAL-031",
        "a setting is out of range",
        "A value has the wrong type, lies outside the declared range, or contradicts another one.",
        "`tp methods evalkit/behaviour` shows type and range of each.",
    ),
    ErrorKind(
        "E-EVAL-032",
        "an evaluation is one process",
        "The job was submitted with a shape of several ranks.",
        "Submit with one GPU: --profile SERIES:1, or with one CPU rank.",
    ),
    ErrorKind(
        "E-EVAL-033",
        "the adapter cannot be used",
        "Its configuration or its safetensors are missing or damaged, or its tensors are not those of this model.",
        "Give the adapter folder that training exported (out/final) and the model that it was trained on.",
    ),
    ErrorKind(
        "E-EVAL-034",
        "the machine has not what was asked for",
        "A GPU, or bf16 on it, is missing.",
        "Use --device auto and precision auto.",
    ),
    ErrorKind(
        "E-EVAL-035",
        "a question does not fit",
        "Its tokens and max_new_tokens together are more than the model's context, or it has no token at all.",
        "Lower max_new_tokens, or take the row out.",
    ),
    ErrorKind(
        "E-EVAL-036",
        "the cache folder cannot be used",
        "It does not exist and cannot be made, or may not be written.",
        "Give a folder of your own, or cache=none.",
    ),
)
