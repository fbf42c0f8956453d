"""Error kinds of the project area: the project's files, its configs, git, what travels, and scaffolding."""

from __future__ import annotations

from tuneplane.contract import exits

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-PROJECT-001",
        "no project here",
        "Neither this folder nor one above it has a tuneplane.yaml.",
        "Go into a project, or make one with `tp init`.",
    ),
    ErrorKind(
        "E-PROJECT-002",
        "tuneplane.yaml is wrong",
        "The project file needs a name, and an apiVersion that this tp reads.",
        "Correct the file; `tp init` in an empty folder shows one.",
    ),
    ErrorKind(
        "E-PROJECT-003",
        "no such experiment",
        "An experiment is a folder under experiments/ (or smoke/) of the project.",
        "Look with `tp ls`; make one with `tp new`.",
    ),
    ErrorKind(
        "E-PROJECT-004",
        "the experiment is no real folder",
        "What a link points at would not travel with the job.",
        "Put a real folder there.",
    ),
    ErrorKind(
        "E-PROJECT-010",
        "a config file cannot be read",
        "config.yaml, or a file that `defaults:` names, is missing, is a link, too large, not UTF-8, or no mapping of keys.",
        "Correct the file that is named.",
    ),
    ErrorKind(
        "E-PROJECT-011",
        "a wrong entry in defaults",
        "`defaults:` takes one path or a list of paths, relative to the file itself and inside the project, at most 64 files in all.",
        "Write it as ../../configs/base.yaml.",
    ),
    ErrorKind(
        "E-PROJECT-012",
        "defaults names a file that is not there",
        "The path is relative to the file that names it.",
        "Correct the path, or add the file.",
    ),
    ErrorKind(
        "E-PROJECT-013",
        "defaults goes in a circle",
        "A file names itself, directly or through others.",
        "Remove one of the entries.",
    ),
    ErrorKind(
        "E-PROJECT-014",
        "a wrong _override_",
        "`_override_: true` replaces a section instead of merging it; nothing else is a value for it.",
        "Write true, or remove the line.",
    ),
    ErrorKind(
        "E-PROJECT-015",
        "a key of config.yaml that nobody reads",
        "The key is neither a section of the job nor a parameter of the method. It would have been ignored without a word.",
        "Correct the spelling; `tp methods F/M` lists the parameters and where they stand.",
    ),
    ErrorKind(
        "E-PROJECT-016",
        "the experiment lacks the file that its method starts",
        "The recipe's entrypoint names a file of the experiment folder.",
        "Add the file, or scaffold the experiment again.",
    ),
    ErrorKind(
        "E-PROJECT-017",
        "a section of config.yaml has the wrong shape",
        "Sections that describe the job are mappings, as in the JobSpec.",
        "Write it as the JobSpec's page shows.",
    ),
    ErrorKind(
        "E-PROJECT-020",
        "git gave no answer",
        "git ran longer than its deadline; the file system may be slow, or the tree very large.",
        "Try again; if it stays slow, run `git status` yourself.",
        exits.TRY_LATER,
    ),
    ErrorKind(
        "E-PROJECT-021",
        "git does not trust the repository",
        "The repository belongs to another user, so git refuses to read it.",
        "Use a clone of your own, or name the folder in git's safe.directory.",
    ),
    ErrorKind(
        "E-PROJECT-022",
        "git failed",
        "git is there and ended with an error. Going on without it would let ignored files travel.",
        "Run the same command yourself and mend what it says.",
    ),
    ErrorKind(
        "E-PROJECT-030",
        "a file that looks like a secret",
        "Keys, tokens and environment files must never be in a package. The name decides; the content is not looked at.",
        "Move it out of the project or add it to .gitignore; jobs read secrets from your own 0600 file.",
    ),
    ErrorKind(
        "E-PROJECT-031",
        "a link or a special file among the files that travel",
        "A link would bring bytes from elsewhere, or lead nowhere in the job.",
        "Replace it by the file itself, or add it to .gitignore.",
    ),
    ErrorKind(
        "E-PROJECT-032",
        "a file name that cannot travel",
        "Names are UTF-8 without control characters and backslashes, so that every record can hold them.",
        "Rename the file.",
    ),
    ErrorKind(
        "E-PROJECT-033",
        "nothing to send",
        "No file of the experiment travels: the folder is empty, or git ignores it.",
        "Look with `git status --ignored`.",
    ),
    ErrorKind(
        "E-PROJECT-034",
        "a git repository inside the project",
        "git does not list the files of a nested repository or submodule, so they would be missing in the job.",
        "Copy the files into the project without their .git, or move them out.",
    ),
    ErrorKind(
        "E-PROJECT-040",
        "there is a project already",
        "tp init never writes over anything.",
        "Choose another folder.",
    ),
    ErrorKind(
        "E-PROJECT-041",
        "the experiment exists already",
        "tp new never writes over anything.",
        "Choose another name.",
    ),
    ErrorKind(
        "E-PROJECT-042",
        "cannot write here",
        "The folder cannot be written, or the disk is full. Nothing half-written stays.",
        "Check permissions and space.",
    ),
    ErrorKind(
        "E-PROJECT-050",
        "plugins.lock.json is wrong",
        "It is an object with apiVersion and plugins, a list of {id, version, digest}.",
        "Correct the entry that is named.",
    ),
    ErrorKind(
        "E-PROJECT-051",
        "a one-line file is wrong",
        "The older files `method` and `cluster` hold one line of plain text.",
        "Remove the file; the lock and --profile say the same today.",
    ),
    ErrorKind(
        "E-PROJECT-052",
        "no such preparation",
        "Neither common/data nor an installed data-prep package has a prepare_<name>.py of that name.",
        "`tp dataset prepare` lists what there is; `tp plugin install OWNER/NAME` brings a package.",
    ),
    ErrorKind(
        "E-PROJECT-053",
        "the name means several scripts",
        "Two installed packages have a prepare_<name>.py of that name, and the project has none.",
        "Copy the one that you mean to common/data, or remove the other package from tuneplane_plugins.",
    ),
    ErrorKind(
        "E-PROJECT-054",
        "an installed package has other bytes",
        "The package in tuneplane_plugins is neither what a lock of the project names nor what the registry has for its version.",
        "Install it again: `tp plugin install OWNER/NAME@VERSION`.",
    ),
)
