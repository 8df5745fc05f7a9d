"""What differs between two runs: job, params, options, plan, versions, code, results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raydist.cli.screen.run_view import duration_s, job_text
from raydist.spec.params import PARAM_TYPES, shown_params
from raydist.spec.plain import as_plain

if TYPE_CHECKING:
    from raydist.storage.run_record import RunRecord

# Of the options, what two runs never share, and what has a section of its own.
_NOT_OPTIONS = {
    *("name", "storage", "resume", "detach", "params", PARAM_TYPES),
    *("entry_point", "args", "working_dir"),
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
    spec, plan = told["spec"], told["plan"]
    roles = {role["task_type"]: role["num_tasks"] for role in plan.get("roles", ()) if isinstance(role, dict)}
    sections: dict[str, Mapping[str, Any]] = {
        "job": {"job": job_text(record), "args": spec.get("args"), "working_dir": spec.get("working_dir")},
        "params": shown_params(spec),
        "options": {name: value for name, value in spec.items() if name not in _NOT_OPTIONS},
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
