"""Error kinds of the site area: the site file, the storage root's layout, users, and what is found wrong with them at use."""

from __future__ import annotations

from tuneplane.contract import exits

from hpc.errors.core import ErrorKind, table

KINDS: dict[str, ErrorKind] = table(
    ErrorKind(
        "E-SITE-001",
        "the site file cannot be read",
        "site/site.yaml is missing, is not a plain file, or is not readable for this user.",
        "Ask an admin; `tp site check` shows what is wrong with the root.",
    ),
    ErrorKind(
        "E-SITE-003",
        "wrong value in the site file",
        "A value of the wrong type, outside its range, or outside its alphabet.",
        "Change the value; docs/site-file.md says what each key takes.",
    ),
    ErrorKind(
        "E-SITE-004",
        "the site file names something that does not exist",
        "A profile names an unknown fleet, a default names an unknown profile, or a user or group is unknown to this machine.",
        "Define what is named, or name what is defined.",
    ),
    ErrorKind(
        "E-SITE-005",
        "this version of tp is not allowed here",
        "The site file's tp_min and tp_max name the versions that this storage root was prepared for.",
        "Use the site's installation of tp; an admin changes tp_min and tp_max after an upgrade.",
    ),
    ErrorKind(
        "E-SITE-006",
        "a value that holds a key or password",
        "The site file is readable for everybody, so it must hold no secret.",
        "Users keep secrets in a 0600 file of their own.",
    ),
    ErrorKind(
        "E-SITE-010",
        "not the admins' property",
        "Something that only admins may provide belongs to another user, so its content proves nothing.",
        "An admin looks at the content, removes or re-creates it, and finds out how it came there.",
    ),
    ErrorKind(
        "E-SITE-011",
        "others than the admins can write it",
        "The mode of a file or folder that only admins may write lets a group or everybody write.",
        "An admin takes the write permission away: `chmod g-w,o-w PATH`; `tp site check` lists all of them.",
    ),
    ErrorKind(
        "E-SITE-012",
        "an access list adds a writer",
        "A POSIX ACL lets a user or group write that should not, now (access) or in new files (default).",
        "Remove the entry with `setfacl -x` (access) or `setfacl -k` (default).",
    ),
    ErrorKind(
        "E-SITE-013",
        "a link where none may be",
        "Nothing below the storage root is reached through a symbolic link: whoever owns the link decides where it leads.",
        "Put the real file or folder there.",
    ),
    ErrorKind(
        "E-SITE-014",
        "the way to the storage root is open",
        "A folder above the root can be written by everybody and has no sticky bit, so anybody can put another root in its place.",
        "An admin takes the write permission away, or moves the root.",
    ),
    ErrorKind(
        "E-SITE-015",
        "the mode of a folder is not the planned one",
        "Somebody changed it, or it was copied without its mode.",
        "`tp site init ROOT`, run again by the admin, sets all modes right and touches no content.",
    ),
    ErrorKind(
        "E-SITE-020",
        "a squatted folder",
        "A folder bears a user's name and belongs to somebody else. It is reported and never used.",
        "An admin removes it; `tp site user add NAME` then makes the right one.",
    ),
    ErrorKind(
        "E-SITE-021",
        "others can write the owner's folder",
        "An owner's folder can be written by a group, by everybody, or through an ACL, so what is in it may not be the owner's.",
        "The owner takes the write permission away: `chmod g-w,o-w PATH`, `setfacl -b PATH`.",
    ),
    ErrorKind(
        "E-SITE-022",
        "the owner's folder is not there",
        "This user has no folder there yet.",
        "`tp site user add NAME`, by an admin as root, or by the user if the site lets users enrol themselves.",
    ),
    ErrorKind(
        "E-SITE-030",
        "unknown user",
        "The machine's user database does not know this name or number.",
        "Check the spelling. If the directory service is away, try again in a minute.",
        exits.TRY_LATER,
    ),
    ErrorKind(
        "E-SITE-031",
        "the user name cannot be a folder name",
        "Owner names become parts of paths, so they are made of letters, digits, '.', '_' and '-'.",
        "Use an account with a plain name; names with a domain, blanks or slashes have no place below a storage root.",
    ),
    ErrorKind(
        "E-SITE-032",
        "the user is retired",
        "An admin retired this user here: records stay readable, new ones are refused.",
        "An admin can take them back with `tp site user add NAME`.",
    ),
    ErrorKind(
        "E-SITE-033",
        "needs root",
        "Giving folders to another user is something that only root may do.",
        "Run the command as root, or let the user run `tp site user add` for themselves where the site allows it.",
    ),
    ErrorKind(
        "E-SITE-034",
        "the user is not retired",
        "Only the folders of a retired user can be given to another.",
        "`tp site user retire NAME` first.",
    ),
    ErrorKind(
        "E-SITE-035",
        "the name has another number now",
        "The user database gives the name another uid than the one it was added with: names or numbers were reused.",
        "An admin finds out who the folders belong to, then retires and transfers them.",
    ),
    ErrorKind(
        "E-SITE-036",
        "needs an admin",
        "Only root, the owner of site/ and members of the admin group may do this.",
        "Ask one of the site's admins; `tp site show` names the group.",
    ),
    ErrorKind(
        "E-SITE-037",
        "needs the service user",
        "Only the site's service user may do this, so that nobody else ever sees the signing key.",
        "Run it as that account: `sudo -u SERVICE tp site key`.",
    ),
    ErrorKind(
        "E-SITE-038",
        "the folders were given to somebody else",
        "A retired user's folders have another owner now, or the one who was named cannot take them.",
        "`tp site user ls` shows who has what. Let new work be done under the new owner's own name.",
    ),
    ErrorKind(
        "E-SITE-040",
        "the folder is not empty and not ours",
        "A storage root is laid out in a new or empty folder, or again in one that was laid out before.",
        "Name another folder, or move away what is in this one.",
    ),
    ErrorKind(
        "E-SITE-041",
        "the path cannot be a storage root",
        "The path is relative, holds an odd character, or its parent does not exist.",
        "Give an absolute path whose parent exists.",
    ),
    ErrorKind(
        "E-SITE-042",
        "the root was laid out for others",
        "The storage root exists already and belongs to another user.",
        "Let its owner or root run the command.",
    ),
    ErrorKind(
        "E-SITE-043",
        "unknown group",
        "The machine's group database does not know this name.",
        "Check the spelling with `getent group NAME`.",
    ),
    ErrorKind(
        "E-SITE-050",
        "no fleet to probe",
        "The site file has no Slurm fleet, or not the one that was named, so there is no compute node to ask.",
        "Add a fleet of kind slurm to site.yaml, or leave --probe out.",
    ),
    ErrorKind(
        "E-SITE-051",
        "the probe job has no id",
        "sbatch took the probe job and printed nothing that is a job id.",
        "Look with squeue for a job named tp-doctor and cancel it; see what a wrapper of sbatch prints.",
    ),
)
