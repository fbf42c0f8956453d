"""Option parsing of the fake commands, and sbatch's reading of a script's directives: up to the first command, no further."""

from __future__ import annotations

import re

# option: takes a value (1), none (0), an optional one (2)
_COMMON = {"version": 0, "help": 0, "clusters": 1, "verbose": 0, "quiet": 0}
_JOB = {
    "job-name": 1, "comment": 1, "partition": 1, "account": 1, "qos": 1, "time": 1, "time-min": 1, "nodes": 1, "ntasks": 1,
    "ntasks-per-node": 1, "cpus-per-task": 1, "mem": 1, "mem-per-cpu": 1, "mem-per-gpu": 1, "gpus": 1, "gpus-per-node": 1,
    "gpus-per-task": 1, "gpu-bind": 1, "gres": 1, "gres-flags": 1, "constraint": 1, "reservation": 1, "exclusive": 2,
    "dependency": 1, "array": 1, "requeue": 0, "no-requeue": 0, "signal": 1, "nice": 2, "mail-type": 1, "mail-user": 1,
    "exclude": 1, "nodelist": 1, "licenses": 1, "switches": 1, "begin": 1, "export": 1, "export-file": 1, "output": 1,
    "error": 1, "input": 1, "open-mode": 1, "chdir": 1, "kill-on-invalid-dep": 1, "tmp": 1, "hint": 1, "distribution": 1,
    "overcommit": 0, "oversubscribe": 0, "priority": 1, "uid": 1, "gid": 1, "wckey": 1, "deadline": 1, "get-user-env": 2,
    "propagate": 2, "threads-per-core": 1, "cpus-per-gpu": 1, "no-kill": 2, "kill-on-bad-exit": 2, "overlap": 0, "exact": 0,
    "label": 0, "unbuffered": 0, "mpi": 1, "cpu-bind": 1, "wait-all-nodes": 1, "jobid": 1, "het-group": 1, "immediate": 2,
}  # fmt: skip
_SHORT_JOB = {
    "J": "job-name", "p": "partition", "A": "account", "q": "qos", "t": "time", "N": "nodes", "n": "ntasks", "c": "cpus-per-task",
    "C": "constraint", "d": "dependency", "a": "array", "x": "exclude", "w": "nodelist", "L": "licenses", "o": "output",
    "e": "error", "i": "input", "D": "chdir", "b": "begin", "V": "version", "Q": "quiet", "v": "verbose", "M": "clusters",
    "G": "gpus", "K": "kill-on-bad-exit", "l": "label", "u": "unbuffered", "H": "hold",
}  # fmt: skip
LONG = {
    "sbatch": _COMMON | _JOB | {"parsable": 0, "test-only": 0, "wrap": 1, "wait": 0, "hold": 0, "ignore-pbs": 0},
    "srun": _COMMON | _JOB | {"hold": 0},
    "squeue": _COMMON
    | {"noheader": 0, "user": 1, "me": 0, "states": 1, "format": 1, "Format": 1, "jobs": 1, "name": 1, "array": 0,
       "partition": 1, "start": 0, "local": 0, "all": 0},
    "sacct": _COMMON
    | {"noheader": 0, "parsable2": 0, "parsable": 0, "delimiter": 1, "allocations": 0, "duplicates": 0, "format": 1, "jobs": 1,
       "user": 1, "starttime": 1, "endtime": 1, "name": 1, "state": 1, "allusers": 0, "partition": 1, "units": 1},
    "scancel": _COMMON | {"name": 1, "user": 1, "me": 0, "signal": 1, "batch": 0, "full": 0, "state": 1},
    "sinfo": _COMMON | {"noheader": 0, "format": 1, "Format": 1, "partition": 1, "Node": 0, "states": 1},
}  # fmt: skip
SHORT = {
    "sbatch": _SHORT_JOB,
    "srun": _SHORT_JOB,
    "squeue": {"h": "noheader", "u": "user", "t": "states", "o": "format", "O": "Format", "j": "jobs", "n": "name", "r": "array",
               "M": "clusters", "V": "version", "p": "partition", "a": "all"},
    "sacct": {"n": "noheader", "P": "parsable2", "p": "parsable", "X": "allocations", "D": "duplicates", "o": "format",
              "j": "jobs", "u": "user", "S": "starttime", "E": "endtime", "s": "state", "a": "allusers", "M": "clusters",
              "r": "partition", "V": "version"},
    "scancel": {"n": "name", "u": "user", "s": "signal", "b": "batch", "f": "full", "t": "state", "Q": "quiet", "M": "clusters",
                "V": "version"},
    "sinfo": {"h": "noheader", "o": "format", "O": "Format", "p": "partition", "N": "Node", "M": "clusters", "V": "version"},
}  # fmt: skip


def parse_options(tool: str, argv: list[str]) -> tuple[dict[str, str], list[str], str]:
    """Options by long name, the words behind them, and what is wrong (or "")."""
    options: dict[str, str] = {}
    at = 0
    while at < len(argv):
        word = argv[at]
        at += 1
        if word == "--":
            break
        if word.startswith("--"):
            name, has_value, value = word[2:].partition("=")
            kind = LONG[tool].get(name)
            if kind is None:
                return options, [], f"unrecognized option '--{name}'"
        elif word.startswith("-") and len(word) > 1:
            name = SHORT[tool].get(word[1], "")
            kind = LONG[tool].get(name)
            if kind is None:
                return options, [], f"invalid option -- '{word[1]}'"
            has_value, value = ("=", word[2:]) if len(word) > 2 and kind else ("", "")
            if kind == 0 and len(word) > 2:
                argv.insert(at, "-" + word[2:])
        else:
            return options, argv[at - 1 :], ""
        if kind == 1 and not has_value:
            if at >= len(argv):
                return options, [], f"option '--{name}' requires an argument"
            value, at = argv[at], at + 1
        options[name] = value
    return options, argv[at:], ""


def split_script(script: str) -> tuple[list[dict[str, str]], str]:
    """Options of each component of a script (`#SBATCH hetjob` divides), and what is wrong. Directives end at the first command."""
    components: list[dict[str, str]] = [{}]
    for line in script.splitlines()[1:]:
        text = line.strip()
        if text.startswith("#SBATCH"):
            words = _tokens(line.split("#SBATCH", 1)[1])
            if words == ["hetjob"]:
                components.append({})
                continue
            found, rest, bad = parse_options("sbatch", words)
            if bad or rest:
                return components, bad or f"error: Invalid directive found in batch script: {rest[0]}"
            components[-1] |= found
        elif text and not text.startswith("#"):
            break
    return components, ""


def _tokens(text: str) -> list[str]:
    """sbatch's own reading: blanks divide, quotes hold together, a # outside quotes ends the line."""
    words, word, quote, inside = [], "", "", False
    for char in text:
        if quote:
            if char == quote:
                quote = ""
            else:
                word += char
        elif char in "\"'":
            quote, inside = char, True
        elif char == "#":
            break
        elif re.match(r"\s", char):
            if word or inside:
                words.append(word)
            word, inside = "", False
        else:
            word += char
    return [*words, word] if word or inside else words
