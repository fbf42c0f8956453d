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
        "E-EVAL-014",
        "another evaluation is writing there",
        "Two at once would write every answer twice.",
        "Wait for the other one, or give a folder of its own with --out.",
    ),
    ErrorKind(
        "E-EVAL-015",
        "the output folder cannot be used",
        "It cannot be made, or something else has its name.",
        "Give a folder that you may write.",
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
        "A name that the method does not declare.",
        "`tp methods evalkit/behaviour` and `tp methods evalkit/benchmark` list all names.",
    ),
    ErrorKind(
        "E-EVAL-031",
        "a setting is out of range",
        "A value has the wrong type, lies outside the declared range, or contradicts another one.",
        "`tp methods evalkit/behaviour` and `tp methods evalkit/benchmark` show type and range of each.",
    ),
    ErrorKind(
        "E-EVAL-032",
        "an evaluation is one process",
        "The shape has several ranks.",
        "Submit with one GPU, --profile SERIES:1, or with one CPU rank, --profile cpu:1.",
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
    ErrorKind(
        "E-EVAL-040",
        "the report cannot be read",
        "A file of it is missing, too large, or not readable here.",
        "Give the id of the evaluation's run (`tp eval ls`), or the folder that holds eval_report.json.",
    ),
    ErrorKind(
        "E-EVAL-041",
        "not a report",
        "It has another schema, or a part of it is missing or of another kind.",
        "Evaluate again; a report is never edited by hand.",
    ),
    ErrorKind(
        "E-EVAL-042",
        "the reports cannot be compared example by example",
        "They decide by two metrics, or the metric that was named is not that of every example.",
        "Name a metric that both have: --by exact_match.",
    ),
    ErrorKind(
        "E-EVAL-043",
        "nothing to compare",
        "No question stands in both reports.",
        "Evaluate both models on the same rows.",
    ),
    ErrorKind(
        "E-EVAL-044",
        "not the baseline that the config names",
        "The report's model, adapter or folder is another one.",
        "Evaluate the baseline that spec.evaluation.baseline names, or name this one.",
    ),
    ErrorKind(
        "E-EVAL-045",
        "a file is not the one that the report was made from",
        "It was changed after the report was written.",
        "Evaluate again; scores and predictions are never edited by hand.",
    ),
    ErrorKind(
        "E-EVAL-046",
        "two reports of one suite",
        "Which of them counts would be a guess.",
        "Give one report a suite; --suite names it when the evaluation runs.",
    ),
    ErrorKind(
        "E-EVAL-047",
        "not a budget",
        "A general-regression suite takes two drops from 0 to 1, of score and pass rate.",
        "Write SUITE, or SUITE=0.03,0.05.",
    ),
    ErrorKind(
        "E-EVAL-048",
        "the config cannot be read",
        "There is no such file, or the folder has no config.yaml.",
        "Give an experiment's folder, its config.yaml, or a JobSpec.",
    ),
    ErrorKind(
        "E-EVAL-049",
        "a number is not that of the scores",
        "A metric in the report is not the mean of what scores.jsonl says of its examples.",
        "Evaluate again; a report is never edited by hand.",
    ),
    ErrorKind(
        "E-EVAL-050",
        "an adapter without its model",
        "The run left an adapter, and the evaluation's package names no model that it stands on.",
        "Evaluate the run with `tp eval run RUN`, which takes the model from the run's own package.",
    ),
    ErrorKind(
        "E-EVAL-060",
        "no benchmark that runs here",
        "benchmark.yaml is missing or at fault, its runner is not lm-eval, or it declares a number that its tasks never give.",
        "`tp plugin validate FOLDER` names every fault of a pack; docs/evaluation.md shows a whole one.",
    ),
    ErrorKind(
        "E-EVAL-061",
        "a task cannot be asked here",
        "It would need a network or code of its own, its numbers are no means over its examples, a key, pattern or template cannot be read, or a question could stand among its own examples.",
        "Mend the key that is named. Rows lie as JSONL beside the task: dataset_path: json, data_files: {test: rows.jsonl}; docs/evaluation.md shows a whole one.",
    ),
    ErrorKind(
        "E-EVAL-062",
        "the rows of a task cannot be read",
        "The file is missing or empty, or a line of it is no JSON object with the fields and the kinds of values of the first line.",
        "Mend the file or the line that is named; null stands for what a row does not have.",
    ),
    ErrorKind(
        "E-EVAL-063",
        "a suite is not there",
        "spec.evaluation.suites names none, or one that is neither `behaviour`, nor a benchmark of the experiment, nor an installed or published pack.",
        "Name a folder below the experiment's benchmarks/, or a pack: `tp plugin ls --capability benchmark`.",
    ),
    ErrorKind(
        "E-EVAL-064",
        "a gate on a number that its suite never gives",
        "Keys are taken whole: exact_match is neither exact_match,strict-match nor exact_match,flexible-extract.",
        "Name one of the numbers that are listed.",
    ),
    ErrorKind(
        "E-EVAL-065",
        "a gate that cannot mean what it says",
        "A regression of a number of which no direction is better, or a bound above 1 on a share, which lies between 0 and 1.",
        "State the metric's direction in benchmark.yaml, or use min and max; write 60 % as 0.6.",
    ),
)
