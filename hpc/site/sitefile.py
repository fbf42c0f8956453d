"""The site file: text in, `Site` out, every fault at once; and `load_site`, which trusts no file that is not the
admins'.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import tuneplane
from pydantic import ValidationError
from tuneplane.contract.layout import StorageRoot

from hpc.errors.core import Refusal, Refusals
from hpc.site.model import Fleet, Profile, Site, UserQuota
from hpc.site.trust import admin_doubts, settle
from hpc.site.words import keyed
from hpc.spec.durations import parse_time
from hpc.spec.model import Strict, refusals, shown
from hpc.spec.slurm_options import parse_slurm
from hpc.spec.yamltext import parse_yaml
from hpc.store.folders import read_record

__all__ = ["Fleet", "Profile", "Site", "check_version", "load_site", "parse_site"]

ORIGIN = "site.yaml"
_TABLES: tuple[tuple[tuple[str, ...], type[Strict]], ...] = (
    (("fleets",), Fleet),
    (("profiles",), Profile),
    (("quota", "users"), UserQuota),
)


def parse_site(text: str, *, version: str = tuneplane.__version__) -> Site:
    """The site that `text` describes. Raises Refusal (not YAML) or Refusals with every fault, fields as
    `site.yaml: quota.gpus`. Does no I/O, so users, groups and paths that are named need not exist.
    """
    value = parse_yaml(text, origin=ORIGIN)
    if not isinstance(value, dict):
        raise Refusal("E-SPEC-013", "the site file must be an object", field=ORIGIN, found=shown(value))
    site, found = _whole(value)
    found += _slurm_faults(value)
    if site is not None and not found:
        found = cross_faults(site)
    for fault in found:
        if not fault.field.startswith(ORIGIN):
            fault.field = f"{ORIGIN}: {fault.field}"
    if found or site is None:
        raise Refusals(found)
    check_version(site, version)
    # cross_faults lets it be empty only where there is one fleet.
    return site if site.default_fleet else site.model_copy(update={"default_fleet": next(iter(site.fleets))})


def _whole(value: dict[str, Any]) -> tuple[Site | None, list[Refusal]]:
    """The value as a site, or its faults. Only a value that is no site is judged table by table, which costs a validator each."""
    try:
        return Site.model_validate(value), []
    except ValidationError as first:
        if not (found := _table_faults(value)):
            return None, refusals(first, Site)
    try:
        Site.model_validate(_without_tables(value))
    except ValidationError as exc:
        found += refusals(exc, Site)
    return None, found


def _inner(value: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    here: Any = value
    for part in path:
        here = here.get(part) if isinstance(here, Mapping) else None
    return here


def _table_faults(value: Mapping[str, Any]) -> list[Refusal]:
    """Faults inside the tables whose keys the admin chooses, each entry judged by itself so that fields are named in
    full.
    """
    return [
        fault
        for path, model in _TABLES
        if isinstance(table := _inner(value, path), dict)
        for name, entry in table.items()
        for fault in _entry_faults(entry, model, ".".join(path), name)
    ]


def _entry_faults(entry: Any, model: type[Strict], table: str, name: str) -> list[Refusal]:
    """Faults of one entry of a table: its name, and everything inside it."""
    out: list[Refusal] = []
    try:
        keyed({name: entry})
    except Refusal as fault:
        fault.field = table
        out.append(fault)
    try:
        model.model_validate(entry)
    except ValidationError as exc:
        out += refusals(exc, model, f"{table}.{name}")
    return out


def _without_tables(value: Mapping[str, Any]) -> dict[str, Any]:
    """The value with its tables emptied, so that faults elsewhere are told in the same breath."""
    out = {k: v for k, v in value.items() if k not in ("fleets", "profiles")}
    if isinstance(quota := out.get("quota"), dict):
        out["quota"] = {k: v for k, v in quota.items() if k != "users"}
    return out


def _slurm_faults(value: Mapping[str, Any]) -> list[Refusal]:
    defaults = _inner(value, ("slurm", "defaults"))
    if not isinstance(defaults, dict):
        return []
    try:
        parse_slurm(defaults, field="slurm.defaults")
    except Refusals as exc:
        return exc.items
    return []


def _profile_faults(name: str, profile: Profile, fleets: Mapping[str, Fleet]) -> list[Refusal]:
    at, out = f"profiles.{name}", []

    def no(key: str, message: str, allowed: str) -> None:
        out.append(Refusal("E-SITE-003", message, field=f"{at}.{key}", found=getattr(profile, key), allowed=allowed))

    if profile.fleet and profile.fleet not in fleets:
        out.append(_unknown(f"{at}.fleet", "fleet", profile.fleet, fleets))
    if profile.cpu_only:
        for key in ("cpus", "memory_gb"):
            if getattr(profile, key) < 1:
                no(key, "a CPU-only profile states it", "at least 1 (or state gpus_per_node)")
        for key in ("series", "gres_type"):
            if getattr(profile, key):
                no(key, "a CPU-only profile has no GPU", "empty (or state gpus_per_node)")
    else:
        if not profile.series:
            no("series", "a profile with GPUs states it", "the GPU series, such as h200")
        if profile.ranks_per_node:
            no("ranks_per_node", "with GPUs there is one process a GPU", "0")
    return out


def _unknown(field: str, kind: str, found: str, known: Mapping[str, Any]) -> Refusal:
    return Refusal(
        "E-SITE-004", f"there is no {kind} {found}", field=field, found=found, allowed=", ".join(known) or "none"
    )


def cross_faults(site: Site) -> list[Refusal]:
    """What is wrong between keys that are each right by themselves. Pure."""
    out: list[Refusal] = []
    if not site.fleets:
        out.append(Refusal("E-SITE-003", "a site has a fleet", field="fleets", allowed="at least one"))
    elif site.default_fleet and site.default_fleet not in site.fleets:
        out.append(_unknown("default_fleet", "fleet", site.default_fleet, site.fleets))
    elif not site.default_fleet and len(site.fleets) > 1:
        fault = Refusal("E-SITE-003", "several fleets, so one is the default", field="default_fleet", found="")
        fault.allowed = ", ".join(site.fleets)
        out.append(fault)
    if site.default_profile and site.default_profile not in site.profiles:
        out.append(_unknown("default_profile", "profile", site.default_profile, site.profiles))
    for name, profile in site.profiles.items():
        out += _profile_faults(name, profile, site.fleets)
    out += _limit_faults(site)
    if site.admission.mode == "enforced":
        for field, text in (("service_user", site.service_user), ("admission.public_key", site.admission.public_key)):
            if not text:
                out.append(
                    Refusal("E-SITE-003", "enforced admission needs it", field=field, found="", allowed="a value")
                )
    return out


def _limit_faults(site: Site) -> list[Refusal]:
    out: list[Refusal] = []
    slurm = site.slurm
    if slurm.poll_max_s < slurm.poll_interval_s:
        allowed = f"at least poll_interval_s, {slurm.poll_interval_s}"
        out.append(
            Refusal("E-SITE-003", "out of range", field="slurm.poll_max_s", found=slurm.poll_max_s, allowed=allowed)
        )
    defaults = site.slurm_defaults()
    limit = parse_time(slurm.limits.time) if slurm.limits.time else None
    default = parse_time(defaults.time) if defaults.time else 0
    if limit is not None and (default is None or default > limit):
        allowed = f"at most slurm.limits.time, {slurm.limits.time}"
        fault = Refusal(
            "E-SITE-003", "above the limit", field="slurm.defaults.time", found=defaults.time, allowed=allowed
        )
        out.append(fault)
    for key, value, among in (
        ("partition", defaults.partition, slurm.limits.partitions),
        ("account", defaults.account, slurm.limits.accounts),
    ):
        if among and value and not set(value.split(",")) <= set(among):
            fault = Refusal("E-SITE-003", "outside the limits", field=f"slurm.defaults.{key}", found=value)
            fault.allowed = ", ".join(among)
            out.append(fault)
    if site.tp_min and site.tp_max and _newer(site.tp_min, site.tp_max):
        allowed = f"at most tp_max, {site.tp_max}"
        out.append(Refusal("E-SITE-003", "above tp_max", field="tp_min", found=site.tp_min, allowed=allowed))
    return out


def _newer(version: str, bound: str) -> bool:
    """True if `version` is beyond every release that `bound` stands for (`0.4` stands for all 0.4.x)."""
    from packaging.version import Version

    ceiling = Version(bound).release
    padded = (*Version(version).release, 0, 0, 0, 0)
    return padded[: len(ceiling)] > ceiling


def check_version(site: Site, version: str) -> None:
    """Raises Refusal E-SITE-005 unless this `tp` may be used with the site."""
    from packaging.version import Version

    low = bool(site.tp_min) and Version(version) < Version(site.tp_min)
    if low or (site.tp_max and _newer(version, site.tp_max)):
        allowed = " and ".join([f">= {site.tp_min}"] * bool(site.tp_min) + [f"<= {site.tp_max}"] * bool(site.tp_max))
        raise Refusal(
            "E-SITE-005",
            f"tp {version} is not for this storage root",
            field=f"{ORIGIN}: {'tp_min' if low else 'tp_max'}",
            found=version,
            allowed=allowed,
        )


def load_site(root: StorageRoot, *, version: str = tuneplane.__version__) -> Site:
    """The storage root's site, from a file that only admins can have written.

    Raises Refusal E-SITE-001 (not there, not readable), E-SITE-01x (not the admins' property), E-SITE-005 (version),
    Refusals for its content.
    """
    if not os.path.lexists(root.site_file):
        raise Refusal("E-SITE-001", "is not there", field=str(root.site_file))
    doubts = admin_doubts(root, root.site_file)
    try:
        text = read_record(root.site_file, anchor=root.path).decode("utf-8")
    except UnicodeDecodeError as exc:
        raise Refusal("E-SITE-001", f"is not UTF-8: {exc}", field=str(root.site_file)) from exc
    site = parse_site(text, version=version)
    settle(doubts, site)
    site._owner_uid = os.lstat(root.site).st_uid  # noqa: SLF001 - set once, by the only reader
    return site
