"""Error kinds of the submit area: package, admission, batch script, fleet."""

from __future__ import annotations

from tuneplane.contract import exits

from hpc.errors.core import ErrorKind, table

_K = ErrorKind
KINDS: dict[str, ErrorKind] = table(
    _K("E-SUBMIT-001", "the site has no kernel for this version", "After an upgrade of tp nobody published its kernel under site/kernels/.", "An admin runs `tp site sync`."),
    _K("E-SUBMIT-002", "a published kernel was changed", "The archive's digest is not the installed version's.", "An admin removes the file, finds out who wrote it, and runs `tp site sync`."),
    _K("E-SUBMIT-010", "a directive value outside the alphabet", "sbatch and bash would read it differently, or it could end the line.", "Use the allowed characters; richer text belongs into labels."),
    _K("E-SUBMIT-011", "a directive line is too long", "Long lines were cut by some Slurm versions.", "Shorten the value."),
    _K("E-SUBMIT-012", "a path that cannot stand in a script", "Storage root, image or input has a blank, quote, comma or colon in its path.", "Move or rename it."),
    _K("E-SUBMIT-020", "a template cannot be read", "The file under sbatch_templates/ is missing, unreadable or not UTF-8.", "Look at `tp template ls`."),
    _K("E-SUBMIT-021", "no such template", "The name is none of the known ones.", "`tp template ls` lists them.", exits.USAGE),
    _K("E-SUBMIT-022", "a template does not render", "A Jinja2 error or an unknown hole.", "Mend the line; `tp template diff` shows what was changed."),
    _K("E-SUBMIT-023", "a script is too large", "The template produced more than 256 KiB.", "Shorten the template."),
    _K("E-SUBMIT-024", "a batch script that sbatch would misread", "`tp template lint` found a line that Slurm ignores or reads otherwise than meant.", "Mend the named line of the site's template."),
    _K("E-SUBMIT-030", "not an intent file", "The JSON given with --intent has unknown or mistyped keys.", "Use the names of the submit flags.", exits.USAGE),
    _K("E-SUBMIT-031", "not KEY=VALUE", "A flag that takes pairs got something else.", "Write KEY=VALUE.", exits.USAGE),
    _K("E-SUBMIT-032", "an input is not there", "The path does not exist or cannot be read from here.", "Give the path of a file or folder on shared storage."),
    _K("E-SUBMIT-033", "an input is no usable file or folder", "It is empty, special, or holds too many files.", "Point to one Hugging Face folder or one data file."),
    _K("E-SUBMIT-034", "a reference without files", "Hub and dataset references are not resolved to local files yet.", "Give a path on shared storage."),
    _K("E-SUBMIT-035", "the entry is missing", "The recipe's entrypoint is not among the experiment's files that travel.", "Create the file, or check that git does not ignore it."),
    _K("E-SUBMIT-036", "uncommitted changes", "The record could not say which code ran.", "Commit, or pass --allow-dirty; the files' digests are recorded either way."),
    _K("E-SUBMIT-037", "the recipe lock does not admit", "The lock is missing, malformed or no longer fits the site's catalogue.", "`tp recipe status EXP` says why, `tp recipe upgrade EXP` mends it."),
    _K("E-SUBMIT-038", "not what is locked", "A flag names another method or framework version than recipe.lock.json.", "Drop the flag, or `tp recipe upgrade EXP --framework-version V`."),
    _K("E-SUBMIT-039", "profiles on several fleets", "One job runs on one fleet.", "Choose profiles of one fleet."),
    _K("E-SUBMIT-040", "no room left", "The disk or the quota is full; nothing was kept.", "Free space (`tp gc --dry-run`, old runs) and submit again.", exits.TRY_LATER),
    _K("E-SUBMIT-041", "the package is too large", "The files that travel exceed the site's packages.max_mb.", "Keep data and outputs out of the experiment; see .gitignore."),
    _K("E-SUBMIT-042", "the run exists", "A run of that id is there already.", "Submit again; ids are drawn at random."),
    _K("E-SUBMIT-043", "a file could not be packed", "It vanished, is a link, or cannot be read; nothing was kept.", "Mend the named file and submit again."),
    _K("E-SUBMIT-050", "nobody can say whether the job exists", "sbatch gave no clean answer and the queue cannot be asked. The intent stays open; nothing is submitted twice.", "Wait, then `tp job ls`: it adopts the job if it is there.", exits.TRY_LATER),
    _K("E-SUBMIT-052", "submitted a moment ago", "The same spec of the same experiment was submitted within the last minute.", "Look at `tp job ls`; pass --again if you mean it."),
    _K("E-SUBMIT-053", "already being submitted", "An intent of this run and attempt exists.", "Wait for the other command, then `tp job ls`.", exits.TRY_LATER),
    _K("E-SUBMIT-060", "outside the site's limits", "The job asks for more than site.yaml allows; Slurm would let it wait for ever.", "Ask for less, or ask an admin."),
    _K("E-SUBMIT-061", "a required input is not given", "The recipe needs a model or data.", "Pass it, or write it into config.yaml."),
    _K("E-SUBMIT-062", "not what was previewed", "Code, config, locks or the site changed since the preview.", "Preview again."),
    _K("E-SUBMIT-070", "the package's owner is not the folder's", "runs/<owner>/ holds a package of another uid.", "Submit as yourself; an admin looks at `tp site check`."),
    _K("E-SUBMIT-071", "the package is not what its list says", "A file was changed, added or removed after packing.", "Submit again."),
    _K("E-SUBMIT-072", "over the GPU quota", "Queued and running runs and this one together exceed the quota.", "Wait, stop a run, or ask an admin."),
    _K("E-SUBMIT-073", "over the job quota", "Too many queued and running runs.", "Wait, stop a run, or ask an admin."),
    _K("E-SUBMIT-074", "another version of tp", "The site's tp_min and tp_max exclude the version that built the package.", "Use the site's installation (`module load`)."),
    _K("E-SUBMIT-075", "launch.json is not what the spec gives", "It was edited, or the site's rules changed in between.", "Submit again."),
    _K("E-SUBMIT-076", "not the registered image", "The package names an image that the site has not registered under that digest.", "`tp runtime ls`; submit again."),
    _K("E-SUBMIT-077", "not the site's recipe", "recipe.json in the package differs from the catalogue.", "`tp recipe upgrade EXP`, then submit again."),
    _K("E-SUBMIT-078", "not the site's kernel", "The package names another kernel than the installed version's.", "Submit again."),
    _K("E-SUBMIT-080", "the signing key cannot be used", "site/keys/admission.key is missing, unreadable or readable by others.", "The service user runs `tp site key`."),
    _K("E-SUBMIT-081", "the service user admits others only", "The package belongs to the service user itself.", "Submit as an ordinary user."),
    _K("E-SUBMIT-082", "admitted before", "admitted/<run_id> exists.", "Submit again; every submission has its own run id."),
    _K("E-SUBMIT-083", "changed while being admitted", "The package's bytes changed between judgement and copy.", "Submit again and do not touch the package."),
    _K("E-SUBMIT-084", "the service user said no", "sudo, or the enforced admission itself, refused.", "Read what it said; an admin checks the sudoers line in docs/admin.md."),
    _K("E-SUBMIT-090", "the run has not ended", "It is queued or running.", "`tp job stop RUN` first, or wait."),
    _K("E-SUBMIT-091", "nothing to resume from", "The run has no complete checkpoint.", "`tp job retry RUN` starts anew."),
    _K("E-SUBMIT-092", "another user's run", "Only the owner submits a run again.", "Copy the experiment and submit it as yourself."),
)  # fmt: skip
