"""`raydist diff RUN RUN`: what differs between two runs: job, params, plan, versions, results, and code."""

from __future__ import annotations

import difflib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from raydist.cli.job_options import reading_options
from raydist.cli.run_argument import complete_run, open_named
from raydist.cli.screen import output
from raydist.cli.screen.run_view import duration_s, job_text
from raydist.errors import MistakeError, StorageError
from raydist.outcome.codec import as_plain
from raydist.spec.params import PARAM_TYPES, shown_params
from raydist.spec.settings.removed import with_new_names
from raydist.spec.settings.roles import RESOURCES, by_name
from raydist.storage.provenance import read_kept_code

if TYPE_CHECKING:
    from raydist.storage.run_record import RunRecord
    from raydist.storage.run_storage import RunStorage

# difflib takes seconds for more, and nobody reads it.
_MAX_BYTES = 256 << 10


@dataclass(frozen=True, kw_only=True)
class FileDifference:
    """A file that two runs have not alike.

    Attributes:
      diff: The unified diff; None where a file is not text, or too large to compare by lines.
    """

    name: str
    diff: str | None


def compare_code(left: bytes, right: bytes, *, runs: tuple[str, str]) -> list[FileDifference]:
    """Returns the files that differ between two zips, or are in one of them only, by name."""
    archives = [zipfile.ZipFile(io.BytesIO(code)) for code in (left, right)]
    before, after = ({entry.filename: entry for entry in archive.infolist()} for archive in archives)
    found = []
    for name in sorted({*before, *after}):
        if _sum(before.get(name)) != _sum(after.get(name)):
            texts = [_file_text(archives[0], before, name), _file_text(archives[1], after, name)]
            found.append(FileDifference(name=name, diff=_diff(texts, name, runs)))
    return found


def diff_lines(differences: list[FileDifference]) -> Iterator[str]:
    """Yields what a person reads of them."""
    for one in differences:
        if one.diff is None:
            yield f"{one.name} differs; it is not text, or larger than {_MAX_BYTES >> 10} KiB"
        else:
            yield one.diff or f"{one.name} differs in the ends of its lines only"


def _sum(entry: zipfile.ZipInfo | None) -> tuple[int, int] | None:
    return None if entry is None else (entry.CRC, entry.file_size)


def _file_text(archive: zipfile.ZipFile, entries: Mapping[str, zipfile.ZipInfo], name: str) -> str | None:
    """Returns a file's text, "" where it does not exist; None where it is not to be compared by lines."""
    if name not in entries:
        return ""
    if entries[name].file_size > _MAX_BYTES:
        return None
    try:
        text = archive.read(name).decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def _diff(texts: list[str | None], name: str, runs: tuple[str, str]) -> str | None:
    if None in texts:
        return None
    left, right = ((text or "").splitlines() for text in texts)
    before, after = (f"{run}/{name}" for run in runs)
    return "\n".join(difflib.unified_diff(left, right, before, after, lineterm=""))


# Of the options, what two runs never share, and what has a section of its own.
_NOT_OPTIONS = {
    *("name", "storage", "resume", "detach", "params", PARAM_TYPES),
    *("entry_point", "args", "working_dir", RESOURCES),
}
_PLAN = ("strategy", "keras", "devices", "batch", "learning_rate")
_CODE = ("digest", "commit", "branch", "dirty")
_RESULTS = ("state", "attempts", "steps", "steps_repeated")


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A fact of two runs; None where a run does not have it."""

    section: str
    name: str
    left: Any
    right: Any

    @property
    def is_equal(self) -> bool:
        return bool(self.left == self.right)


def compare(left: RunRecord, right: RunRecord) -> list[Difference]:
    """Returns each fact of the two runs, those that are equal too, by section."""
    lefts, rights = (dict(_facts(record)) for record in (left, right))
    return [
        Difference(
            section=section, name=name, left=lefts.get((section, name)), right=rights.get((section, name))
        )
        for section, name in dict.fromkeys([*lefts, *rights])
    ]


def _facts(record: RunRecord) -> Iterator[tuple[tuple[str, str], Any]]:
    told = as_plain(record)
    spec, plan = with_new_names(told["spec"]), told["plan"]
    roles = {role["task_type"]: role["num_tasks"] for role in plan.get("roles", ()) if isinstance(role, dict)}
    sections: dict[str, Mapping[str, Any]] = {
        "job": {"job": job_text(record), "args": spec.get("args"), "working_dir": spec.get("working_dir")},
        "params": shown_params(spec),
        "options": {
            **{name: value for name, value in spec.items() if name not in _NOT_OPTIONS},
            **by_name(spec.get(RESOURCES, {})),
        },
        "plan": {**{name: plan.get(name) for name in _PLAN}, **roles},
        "versions": told["versions"],
        "code": {name: value for name, value in (told["code"] or {}).items() if name in _CODE},
        "hosts": _hardware(record),
        "results": {**{name: told[name] for name in _RESULTS}, "duration_s": duration_s(record)},
        "best": {} if record.best is None else {record.best.name: record.best.value},
        "metrics": record.metrics,
    }
    for section, facts in sections.items():
        for name, value in (facts or {}).items():
            yield (section, name), value


def _hardware(record: RunRecord) -> dict[str, Any]:
    """Returns what the hosts are made of. Their names and number say nothing of a difference in results."""
    machines = [as_plain(group.machine) for group in record.environment.hosts]
    return {
        name: ", ".join(sorted({str(machine[name]) for machine in machines if machine[name]})) or None
        for name in ("system", "cpu", "num_cpus", "memory_bytes", "gpus")
        if machines
    }


@click.command("diff", epilog="More: `raydist guide storage`.")
@click.argument("left", metavar="RUN", shell_complete=complete_run)
@click.argument("right", metavar="RUN", shell_complete=complete_run)
@click.option("--all", "is_all", is_flag=True, help="Show what is equal too.")
@reading_options
def command(left: str, right: str, is_all: bool, storage: str, is_json: bool) -> None:
    """Show what differs between two runs.

    That is the job, params, options, the plan, versions, code, hosts and the results, and the text of the
    files of the code that differ.
    """
    from raydist.storage.run_record import read_record

    opened = [open_named(storage, run) for run in (left, right)]
    records = [read_record(one) for one in opened]
    found = [one for one in compare(*records) if is_all or not one.is_equal]
    names = [record.run for record in records]
    files, note = _files(opened, records)
    if is_json:
        told = {"differences": as_plain(found), "files": as_plain(files)}
        output.print_json({"runs": names, **told, "note": note})
    elif found:
        rows = [[one.section, one.name, _text(one.left), _text(one.right)] for one in found]
        output.print_table(("section", "name", *names), rows)
        for line in [*diff_lines(files), *([] if note is None else [f"note: {note}"])]:
            output.show(f"\n{line}")
    else:
        output.show(f"runs {names[0]} and {names[1]} do not differ")


def _files(
    opened: Sequence[RunStorage], records: Sequence[RunRecord]
) -> tuple[list[FileDifference], str | None]:
    """Returns the files of the code that differ, and what cannot be said of them."""
    left, right = (record.code for record in records)
    if left is None or right is None or left.digest == right.digest:
        return [], None
    try:
        kept = [read_kept_code(*pair) for pair in zip(opened, (left, right), strict=True)]
        files = compare_code(kept[0], kept[1], runs=(records[0].run, records[1].run))
    except (MistakeError, StorageError, zipfile.BadZipFile) as error:
        return [], f"only digests of the code can be compared: {error}"
    omitted = sorted({*left.omitted, *right.omitted})
    if not files and omitted:
        return [], f"the code differs in files that are not kept: {', '.join(omitted)}"
    return files, None


def _text(value: object) -> object:
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value).lower() if isinstance(value, bool) else value
