"""Error kinds of the catalog area: recipe packs, recipe locks, runtimes and images."""

from __future__ import annotations

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-CATALOG-001",
        "unknown method",
        "No recipe of that id is in the catalogue. An id always has two parts: <framework>/<method>.",
        "Choose one from `tp methods` or `tp recipe ls`.",
    ),
    ErrorKind(
        "E-CATALOG-002",
        "recipe.yaml cannot be read",
        "The pack has no recipe.yaml, it is a link, too large, or not YAML of the JSON kind.",
        "Mend or publish the pack again.",
    ),
    ErrorKind(
        "E-CATALOG-003",
        "recipe.yaml lacks a key",
        "A pack needs name, version, framework, entrypoint, template, metrics, artifacts, lifecycle, "
        "lifecycle_resources, adapter_options and runtime, and each of these its own required keys.",
        "Add the key that the message names.",
    ),
    ErrorKind(
        "E-CATALOG-004",
        "recipe.yaml has a bad value",
        "A value has the wrong type, is not one of the allowed words, or contradicts another key of the pack.",
        "Change it to what is allowed there.",
    ),
    ErrorKind(
        "E-CATALOG-005",
        "the pack lies in the wrong folder",
        "A pack's folder must be named like its `name`, and lie in a folder named like its `framework`.",
        "Rename the folder, or the pack.",
    ),
    ErrorKind(
        "E-CATALOG-006",
        "the pack's template folder is missing",
        "recipe.yaml names a template folder that is not there, or holds something that is neither file nor folder.",
        "Publish the pack with its template.",
    ),
    ErrorKind(
        "E-CATALOG-007",
        "nobody but an admin publishes recipes",
        "The recipe shelf belongs to the site's admins.",
        "Ask an admin of the site.",
    ),
    ErrorKind(
        "E-CATALOG-008",
        "another pack is in the way",
        "A folder that was put there by hand has this method's name and other content. Publishing never removes it.",
        "Move the folder away and publish again.",
    ),
    ErrorKind(
        "E-CATALOG-010",
        "unknown hyperparameter",
        "The recipe declares no parameter of that name.",
        "See the method's parameters with `tp methods <framework>/<method>`.",
    ),
    ErrorKind(
        "E-CATALOG-011",
        "a required hyperparameter is missing",
        "The recipe has no default for it.",
        "Set it in config.yaml, or with --set NAME=VALUE.",
    ),
    ErrorKind(
        "E-CATALOG-012",
        "a hyperparameter has the wrong type or is out of range",
        "Integers must be integers, true and false are no numbers, and bounds are part of the recipe.",
        "Choose a value in the allowed range; `tp methods <framework>/<method>` shows it.",
    ),
    ErrorKind(
        "E-CATALOG-013",
        "the hyperparameter is not in this framework version",
        "The recipe declares the parameter for other versions of the framework only.",
        "Leave it out, or choose another --framework-version.",
    ),
    ErrorKind(
        "E-CATALOG-014",
        "the recipe does not support this framework version",
        "The version is not in the recipe's runtime matrix.",
        "Choose a listed version, or run `tp recipe upgrade`.",
    ),
    ErrorKind(
        "E-CATALOG-020",
        "recipe.lock.json is missing",
        "Every experiment carries the lock of the recipe it was made from.",
        "Make one with `tp recipe upgrade EXP --method <framework>/<method>`.",
    ),
    ErrorKind(
        "E-CATALOG-021",
        "recipe.lock.json cannot be used",
        "It is not JSON, has another apiVersion, or names a method that the catalogue does not have.",
        "Mend it with `tp recipe upgrade EXP`, adding --method <framework>/<method> if the method is unknown.",
    ),
    ErrorKind(
        "E-CATALOG-022",
        "recipe name differs",
        "The experiment was locked to another recipe than the one it is compared with.",
        "`tp recipe upgrade EXP` brings the lock up to the catalogue.",
    ),
    ErrorKind(
        "E-CATALOG-023",
        "recipe version differs",
        "The catalogue holds another version of the recipe than the lock.",
        "`tp recipe upgrade EXP` brings the lock up to the catalogue.",
    ),
    ErrorKind(
        "E-CATALOG-024",
        "recipe digest differs",
        "The catalogue's recipe.yaml is not the one the lock was made from.",
        "`tp recipe upgrade EXP` brings the lock up to the catalogue.",
    ),
    ErrorKind(
        "E-CATALOG-025",
        "framework differs",
        "The lock's framework is not the recipe's.",
        "`tp recipe upgrade EXP` brings the lock up to the catalogue.",
    ),
    ErrorKind(
        "E-CATALOG-026",
        "runtime differs",
        "The lock names another runtime_id than the catalogue has for this framework version.",
        "`tp recipe upgrade EXP` brings the lock up to the catalogue.",
    ),
    ErrorKind(
        "E-CATALOG-027",
        "this tp is outside the range that the recipe requires",
        "requires.core of the recipe, or of the lock, does not admit the version of the tp that made the job.",
        "Use a tp of the range (ask your admin), or `tp recipe upgrade EXP` if only the lock is old.",
    ),
    ErrorKind(
        "E-CATALOG-028",
        "the lock's bindings no longer hold",
        "A parameter that the experiment sets was removed, moved or retyped, or the entrypoint moved.",
        "`tp recipe upgrade EXP` shows what changes; then check config.yaml.",
    ),
    ErrorKind(
        "E-CATALOG-029",
        "a lock could not be written",
        "Writing one experiment's lock failed. The locks written before it were put back; nothing was upgraded.",
        "Make room, or mend the permissions of the folder that is named, and upgrade again.",
    ),
    ErrorKind(
        "E-CATALOG-030",
        "observability_url is required",
        "The recipe declares external observability: where its dashboard is must be said.",
        "Give --observability-url URL.",
    ),
    ErrorKind(
        "E-CATALOG-031",
        "observability_url is forbidden",
        "The recipe declares platform observability: the platform's own record is the only one.",
        "Leave --observability-url out.",
    ),
    ErrorKind(
        "E-CATALOG-040",
        "unknown runtime",
        "No SIF is registered under this runtime_id. A job never falls back to another one.",
        "Ask an admin for `tp runtime add ID FILE.sif`; `tp runtime ls` shows what is there.",
    ),
    ErrorKind(
        "E-CATALOG-041",
        "runtimes.yaml cannot be used",
        "The file is not YAML, has another schema, an unknown key, or a value of the wrong form.",
        "Mend the entry that the message names, or register the runtime again with `tp runtime add`.",
    ),
    ErrorKind(
        "E-CATALOG-042",
        "nobody but an admin registers runtimes",
        "site/runtimes.yaml belongs to the site's admins.",
        "Ask an admin of the site.",
    ),
    ErrorKind(
        "E-CATALOG-043",
        "the runtime_id is taken",
        "Another SIF is registered under this id. Jobs and locks refer to it, so it is not changed in passing.",
        "Register the new SIF under a new id, or say --replace.",
    ),
    ErrorKind(
        "E-CATALOG-044",
        "the SIF is not the one that was registered",
        "Its SHA-256, or its size, time of change or owner, differ from the record.",
        "Restore the registered file, or register the new one with `tp runtime add`.",
    ),
    ErrorKind(
        "E-CATALOG-045",
        "the SIF belongs to somebody who is no admin",
        "The file, or a folder above it, can be changed by a user who is not an admin of the site.",
        "Register with --copy, which puts an admin-owned copy under site/images/, or mend the owner and mode.",
    ),
    ErrorKind(
        "E-CATALOG-046",
        "not an image reference",
        "An image is written [docker://|oras://]HOST/PATH[:TAG][@sha256:<64 hex>].",
        "Write the reference as the site registered it; `tp runtime ls` shows the sources.",
    ),
    ErrorKind(
        "E-CATALOG-047",
        "the image's registry is not allowed",
        "The site's images.allowed_hosts does not name the host.",
        "Use an image from an allowed host, or ask your admin.",
    ),
    ErrorKind(
        "E-CATALOG-048",
        "the image is not registered here",
        "--image names a source that no registered SIF was made from. Nothing is pulled when a job is submitted.",
        "Ask an admin to convert it once and run `tp runtime add ID FILE.sif --source REFERENCE`.",
    ),
    ErrorKind(
        "E-CATALOG-049",
        "no definition for this runtime",
        "There is no --definition, and no shipped containers/*.def says that it builds this id.",
        "Give --definition FILE.def.",
    ),
    ErrorKind(
        "E-CATALOG-050",
        "two runtimes say that they are one image",
        "Another registered runtime has the same source, so that --image could mean either file.",
        "Leave --source out, or register with --replace under the id that has the source.",
    ),
)
