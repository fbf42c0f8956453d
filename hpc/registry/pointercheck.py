"""Every generation of a pointer: there, whole, following the one before, its seal's, with the right owner and mode. For the audit; reads only."""

from __future__ import annotations

import os
import re
import stat

from hpc.errors.core import Refusal
from hpc.registry.generations import Generation, Pointer
from hpc.registry.problems import LITTER, NOTE, TAMPERED, Problem, below, of_error, of_refusal
from hpc.registry.seal import changed
from hpc.registry.sealcheck import SealFolder
from hpc.registry.shelf import is_litter
from hpc.registry.tally import Tally

_NAME = re.compile(r"[1-9][0-9]{0,8}\.json")


def check_pointer(pointer: Pointer, uids: frozenset[int], out: Tally) -> None:
    """Count one pointer's generations and name everything that is wrong with them. Never raises for what it finds."""
    problems, root = out.problems, pointer.root.path
    where = below(root, pointer.folder)
    try:
        names = os.listdir(pointer.folder)
        numbers = pointer.numbers()
    except (FileNotFoundError, NotADirectoryError):
        names, numbers = [], []
        if os.path.lexists(pointer.folder):
            problems.append(Problem(TAMPERED, "E-REG-012", where, "is no real folder"))
    except OSError as exc:
        problems.append(of_error(exc, where))
        return
    except Refusal as fault:
        problems.append(of_refusal(fault, where))
        return
    for name in sorted(names):
        if is_litter(name):
            problems.append(Problem(NOTE, LITTER, f"{where}/{name}", "a writer died here"))
        elif not _NAME.fullmatch(name):
            problems.append(Problem(TAMPERED, "E-REG-013", f"{where}/{name}", "does not belong here"))
    if numbers or (pointer.root.seals / pointer.subject).is_dir():
        _check_generations(pointer, numbers, uids, out)
    out.generations += len(numbers)


def _check_generations(pointer: Pointer, numbers: list[int], uids: frozenset[int], out: Tally) -> None:
    root, problems, good = pointer.root.path, out.problems, {}
    with SealFolder(pointer.root, pointer.subject, uids, problems) as seals:
        for number in numbers:
            generation, problem = pointer.read(number)
            if problem is not None:
                problems.append(problem._replace(path=below(root, problem.path)))
            seal = seals.get(str(number))
            if generation is None:
                continue
            good[number] = generation
            _check_mode(pointer, number, problems)
            if seal is not None and seal.record != generation.digest:
                where = below(root, pointer.path(number))
                problems.append(changed(seal.record, generation.digest, where, seal))
        sealed = {int(s) for s in seals.stems if s.isdecimal()}
        for number in sorted(set(range(1, max(numbers, default=0) + 1)) - set(numbers) - sealed):
            problems.append(Problem(TAMPERED, "E-REG-012", below(root, pointer.path(number)), "is missing"))
        seals.close_with(map(str, numbers))
        out.seals += seals.count
    _check_chain(pointer, good, problems)


def _check_mode(pointer: Pointer, number: int, problems: list[Problem]) -> None:
    path = pointer.path(number)
    try:
        mode = stat.S_IMODE(os.lstat(path).st_mode)
    except OSError as exc:
        problems.append(of_error(exc, below(pointer.root.path, path)))
        return
    if mode != 0o444:
        where = below(pointer.root.path, path)
        problems.append(Problem(TAMPERED, "E-REG-015", where, f"has mode {mode:04o}", f"{mode:04o}", "0444"))


def _check_chain(pointer: Pointer, good: dict[int, Generation], problems: list[Problem]) -> None:
    for number, generation in good.items():
        where = below(pointer.root.path, pointer.path(number))
        before = good.get(generation.after)
        wanted = before.digest if before is not None else "" if generation.after == 0 else None
        if wanted is not None and generation.previous != wanted:
            text = f"does not follow generation {generation.after}: it names {generation.previous or 'none'}"
            problems.append(Problem(TAMPERED, "E-REG-012", where, text, generation.previous, wanted))
        if passed := [n for n in range(generation.after + 1, number) if n in good]:
            text = f"was made without generation {passed[0]}, which was not whole then"
            problems.append(Problem(NOTE, "passed-over", where, text))
