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
        "E-EVAL-020",
        "not a baseline",
        "evaluation.baseline is neither base nor a run nor a model.",
        "Write base, run/<run_id>, or the model's reference or path.",
    ),
)
