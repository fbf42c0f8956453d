"""Error kinds of framework integrations: binding one to a job, and compiling it to a launch plan."""

from __future__ import annotations

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-FRAME-001",
        "the recipe's framework integration is not locked",
        "The recipe is started by what an integration package compiles, and the experiment's plugins.lock.json does not name that package.",
        "Lock it with `tp plugin install OWNER/NAME --exp EXP`.",
    ),
    ErrorKind(
        "E-FRAME-002",
        "another framework integration than the recipe's",
        "A job is compiled by the one integration that its recipe names; another one would travel and never be used.",
        "Remove it with `tp plugin remove ID --exp EXP`, or choose a recipe that names it.",
    ),
    ErrorKind(
        "E-FRAME-003",
        "the integration has no profile for this job",
        "integration.json has no profile with the job's framework, method, engine and runtime.",
        "Lock a version of the integration that has one, or choose a listed framework version.",
    ),
    ErrorKind(
        "E-FRAME-004",
        "the integration's compiler failed",
        "Its program ended with an error, or wrote something else than one JSON document. Its last words are in the message.",
        "Ask the package's owner; nothing was submitted.",
    ),
    ErrorKind(
        "E-FRAME-005",
        "the integration's compiler took too long or too much",
        "It has 30 seconds, 2 GB of memory and 4 MiB of output.",
        "Ask the package's owner; nothing was submitted.",
    ),
    ErrorKind(
        "E-FRAME-006",
        "this machine cannot isolate a compiler",
        "A package's compiler runs only without network and without any file of yours, which takes Linux user namespaces and util-linux. They are switched off here.",
        "Submit from a machine that allows user namespaces, or ask an admin to allow them (sysctl user.max_user_namespaces, AppArmor).",
    ),
    ErrorKind(
        "E-FRAME-007",
        "the integration's compiler is not deterministic",
        "Compiled twice from the same request it gave two plans, so that no review of a plan would be worth anything.",
        "Ask the package's owner: no clock, no random numbers, sorted output.",
    ),
    ErrorKind(
        "E-FRAME-008",
        "the launch plan is not in the contract's form",
        "A key is missing, unknown or of another type, a bound is exceeded, or the plan sets what belongs to the launcher.",
        "The contract is in docs/frameworks.md; ask the package's owner.",
    ),
    ErrorKind(
        "E-FRAME-009",
        "a generated file would leave its folder",
        "Files of a launch plan have relative paths below the job's generated folder.",
        "Ask the package's owner.",
    ),
    ErrorKind(
        "E-FRAME-010",
        "the launch plan in the package is not what its integration gives",
        "Admission compiles again from the package's own bytes and compares.",
        "Submit again. Where it happens again, the compiler depends on something else than its request.",
    ),
    ErrorKind(
        "E-FRAME-011",
        "the integration needs an input that the job does not have",
        "required_inputs of integration.json names a model, training or validation data.",
        "Give it with --model, --train-data or --validation-data, or in config.yaml.",
    ),
    ErrorKind(
        "E-FRAME-012",
        "a parameter of the recipe lies where the integration binds",
        "The generated file has one source a path, and this one belongs to the platform.",
        "Ask the recipe's owner to leave the parameter out.",
    ),
    ErrorKind(
        "E-FRAME-013",
        "rows in a form that the framework does not read",
        "Its reader goes by the end of the file's name, reads one form whatever the name says, or splits a path at a character; it would stop on the nodes.",
        "Write the rows in one of the forms that are allowed, name one file of a data set that has it, or give the file another path.",
    ),
    ErrorKind(
        "E-FRAME-014",
        "roles that the method cannot place so",
        "The framework has no option for that placement, and would put the roles elsewhere without a word.",
        "Use one of the placements that are allowed, or one --profile for all roles.",
    ),
    ErrorKind(
        "E-FRAME-015",
        "the method does not read a part of the spec",
        "The framework would train as if it had not been stated.",
        "Leave it out; `tp methods NAME` lists the parameters that say the same, such as lora_rank for model.peft.",
    ),
)
