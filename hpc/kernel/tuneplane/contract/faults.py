"""Codes of what can go wrong inside the job. The login node's catalogue takes them over, so that `tp job why` explains them."""

from __future__ import annotations

from typing import Final

# code: (title, cause, mend)
JOB_FAULTS: Final[dict[str, tuple[str, str, str]]] = {
    "E-JOB-001": (
        "the package's own records cannot be read",
        "A file below work/.tuneplane/ is missing, is not JSON or has another shape.",
        "Submit again; the package on disk is damaged.",
    ),
    "E-JOB-002": (
        "the package is not what was packed",
        "A file of the package was changed, added, removed or replaced by a link after submission.",
        "Submit again instead of editing a package; the message names the files and both digests.",
    ),
    "E-JOB-003": (
        "not admitted",
        "admission.json is missing, unreadable or says no.",
        "Submit with `tp submit`, which asks for admission.",
    ),
    "E-JOB-004": (
        "the admission is for another package",
        "admission.json does not carry the digests that the job computed: it was edited, copied, or the package changed.",
        "Submit again.",
    ),
    "E-JOB-005": (
        "admitted for another user",
        "The job runs under another uid than the one that was admitted.",
        "Submit as yourself.",
    ),
    "E-JOB-006": (
        "the site's policy cannot be trusted",
        "site/policy.json is unreadable or writable by everybody.",
        "Ask an admin to run `tp site sync`.",
    ),
    "E-JOB-007": (
        "this site runs enforced admissions only",
        "The admission is advisory.",
        "Submit with `tp submit`; the site file sends it through the service user.",
    ),
    "E-JOB-008": (
        "the admission's signature is not the site's",
        "admission.json was forged or edited, or the site's key changed.",
        "Submit again.",
    ),
    "E-JOB-009": (
        "an input changed since submission",
        "A model or data file is missing or differs from what was recorded when the job was submitted.",
        "Put the file back, or submit again with the new one.",
    ),
    "E-JOB-010": (
        "the training kernel changed",
        "The kernel archive under site/kernels/ is missing or has another digest.",
        "Ask an admin to run `tp site sync`.",
    ),
    "E-JOB-011": (
        "the allocation differs from the spec's shape",
        "Slurm gave other nodes or GPUs than the spec asks for, or the container does not see them.",
        "Look at the profile's gpu_dialect and at `tp doctor --probe`.",
    ),
    "E-JOB-012": (
        "the batch script is incomplete",
        "A TP_ variable is missing; a site template was edited too far.",
        "`tp template lint`, then submit again.",
    ),
    "E-JOB-013": (
        "the nodes did not come together",
        "A file could not be written, or node 0 did not publish its port before the deadline.",
        "Look at logs/node-*.log of the attempt; the message names who is missing.",
    ),
    "E-JOB-014": (
        "the verifying kernel changed",
        "The archive under site/kernels/ that checks everything else is missing or has another digest.",
        "Ask an admin to run `tp site sync`, then submit again.",
    ),
    "E-JOB-015": (
        "the image changed",
        "The SIF is missing or is not the one that was registered.",
        "Ask an admin to run `tp runtime verify` and to register the new image under a new id.",
    ),
    "E-JOB-016": (
        "restarted more often than the spec allows",
        "Slurm itself queued the job again, after a node failed or it was preempted, beyond spec.lifecycle.max_attempts.",
        "Look at why the nodes fail; then `tp job resume RUN`, or submit with a higher --max-attempts.",
    ),
    "E-JOB-017": (
        "no variant for this element",
        "The sweep's table in the package has no such index: the array was submitted by hand, or the batch template drops the index.",
        "Submit with `tp sweep`; an admin compares the site's custom.sbatch.j2 with the shipped one (`tp template diff`).",
    ),
    "E-JOB-030": (
        "a plugin's content is not what was locked",
        "A file of the plugin in the package was changed, added or removed after submission.",
        "Submit again; the message names both digests. `tp plugin info` shows the published one.",
    ),
    "E-JOB-031": (
        "a locked plugin cannot be read",
        "The plugin is missing from the package, its records disagree, or its manifest names another plugin or version.",
        "Submit again; in a work folder made by hand, put the plugin's files below tuneplane_plugins/ and its triple into jobspec.json.",
    ),
    "E-JOB-032": (
        "plugins get in each other's way",
        "Two locked plugins share a folder or an import name, or a name belongs to the standard library, the image or the experiment.",
        "Rename one of the modules, or lock only one of the plugins; the message names both owners.",
    ),
    "E-JOB-033": (
        "a plugin needs another Python",
        "requires.python of the manifest, or Requires-Python of the wheel, does not admit the interpreter in the image.",
        "Choose a runtime with that Python: `tp runtime ls`.",
    ),
    "E-JOB-034": (
        "a plugin's dependency is not in the image",
        "A Requires-Dist of the wheel is not installed in the job's interpreter, or in another version. tp installs nothing into jobs.",
        "Choose a runtime that has it, or publish the plugin with another range.",
    ),
    "E-JOB-035": (
        "a plugin is for another version of the core",
        "requires.core of the manifest does not admit this version of tp.",
        "Lock a version of the plugin that does: `tp plugin info`.",
    ),
    "E-JOB-036": (
        "a plugin cannot be loaded",
        "Its module or callable is missing, importing it failed, it came from somewhere else, or its wheel cannot be read.",
        "The message ends with the plugin's own error. `tp plugin validate` finds most of these before publishing.",
    ),
    "E-JOB-037": (
        "a plugin raised",
        "The plugin's callable ended with an exception; the training program was not started.",
        "The message ends with the plugin's traceback; its author can mend it and publish a new version.",
    ),
    "E-JOB-038": (
        "no such deferred plugin",
        "The training code asked for a plugin that is not locked to the job, or that is not `load: deferred`.",
        "Lock it to the experiment with `tp plugin install OWNER/NAME --exp EXP`.",
    ),
    "E-JOB-039": (
        "the recipe's plugins are not locked",
        "The recipe names plugins that no locked package has as its name.",
        "Lock them with `tp plugin install OWNER/NAME --exp EXP`, then submit again.",
    ),
    "E-JOB-040": (
        "the transform's request is not understood",
        "The request file has another shape, an input is missing or is no file or folder, or --timeout is no time.",
        "The message names the key; a request has api, inputs and, optionally, config.",
    ),
    "E-JOB-041": (
        "the transform's output or report has no place",
        "The output exists already, lies outside of TUNEPLANE_OUT_DIR, or its folder is missing; or a report would overwrite something else.",
        "Name a new folder below $TUNEPLANE_OUT_DIR, and a report beside it.",
    ),
    "E-JOB-042": (
        "no such provider is locked",
        "The plugin is not locked to this job, or is no data-prep package with `execution: job`.",
        "`tp plugin install OWNER/NAME --exp EXP`, then submit again.",
    ),
    "E-JOB-043": (
        "the provider failed",
        "It raised, ended without a result, returned something else than a TransformResult, or an input changed under it.",
        "Its own traceback is in the job's log; the report's reason ends with its last lines.",
    ),
    "E-JOB-044": (
        "the output is not what the provider listed",
        "A file is not listed, listed twice or missing, or there is a link, a hard link or a special file.",
        "The provider lists every file below output_dir once; its author can mend it.",
    ),
    "E-JOB-045": (
        "the provider did not end in time",
        "The deadline of --timeout passed; the provider's processes were ended and nothing was published.",
        "Give it more with --timeout SECONDS, or less to do.",
    ),
    "E-JOB-046": (
        "the transform was cancelled",
        "TERM, INT or USR2 came (cancelled, preempted, or the end of the time limit); nothing was published.",
        "Run it again; an output is published whole or not at all.",
    ),
    "E-JOB-047": (
        "the machine could not do it",
        "A file could not be written, read back or renamed; most often the disk or the quota is full.",
        "The message names the path and the system's reason; make room and run again.",
    ),
    "E-JOB-048": (
        "processes of the provider could not be ended",
        "A process that the provider started was still there after KILL (another user's, or stuck in the file system).",
        "The report lists their numbers; Slurm ends them with the job.",
    ),
    "E-JOB-049": (
        "the transform did not come to its end",
        "The report is the one from the start: the runner is still at work, or it was killed.",
        "Look at the job's end (`tp job why RUN`); a folder .transform-* beside the output may be removed.",
    ),
    "E-JOB-050": (
        "a volume is not what was recorded",
        "It cannot be read by this user on this node, was removed, or its record or mount is another one.",
        "Ask its owner; `tp volume ls` shows what there is. Then submit again.",
    ),
    "E-JOB-051": (
        "the run that this one follows made nothing to go on with",
        "It did not end well, never ran, or left no artefact of the kind that this job needs.",
        "`tp job why` of that run says why; `tp job retry` of it submits its follow-ups again, too.",
    ),
    "E-JOB-052": (
        "what the run before left is not what it recorded",
        "A file of its artefact, its report or its end was changed, its package is another one, or it belongs to another user.",
        "`tp runs audit` of that run names what changed. Train again, or take another run.",
    ),
    "E-JOB-060": (
        "the framework's launch plan cannot be used",
        "plan.json is damaged, is not the one that was admitted, or wants a value that the job does not have.",
        "Submit again.",
    ),
    "E-JOB-061": (
        "Ray was not formed, or did not run its driver",
        "`ray symmetric-run` ended with 0 and the driver did not: a node did not join, the port was taken, or another Ray runs on the node.",
        "Look at logs/rank-*.log of the attempt, and for a Ray of yours on its nodes that no job started.",
    ),
    "E-JOB-062": (
        "Ray was lost on a node that had joined",
        "Ray's own processes ended there (memory, a crash, somebody's `ray stop`) while the driver ran on; the job ends rather than wait for it.",
        "Look at logs/rank-*.log and logs/node-*.log of that node. Where memory ran out, ask for more of it or for smaller batches.",
    ),
}
