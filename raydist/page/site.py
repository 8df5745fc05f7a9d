"""What `raydist ui` answers, by path: the page, its script and style, the list of runs, a study, one run."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, unquote

from raydist.errors import MistakeError, RaydistError, SpecError, StorageError
from raydist.outcome.status import Scope
from raydist.page.gathering import Problems, gather_curves, gather_facts
from raydist.page.html import live_html, page_json, script, style
from raydist.page.run_list import run_list, study_list
from raydist.spec.job import check_run_name
from raydist.storage.filesystem import Storage
from raydist.storage.run_storage import RunStorage

# Of curves that are packed already, for other pages on the same runs.
_MAX_KEPT = 12
# Ten runs side by side need no more than this of each.
_COMPARED_POINTS = 100_000


@dataclass(frozen=True)
class Response:
    """An HTTP response: status, content type and content."""

    status: int
    kind: str
    content: bytes


@dataclass(frozen=True)
class _Curves:
    version: str
    packed: dict[str, Any]


class Site:
    """Answers for one storage. Safe to use from several threads."""

    def __init__(self, storage: Storage, *, version: str, clock: Callable[[], float] = time.time) -> None:
        """Takes raydist's version, which the page shows."""
        self._storage = storage.hasty()  # whoever looks at the page asks again in a moment
        self._version = version
        self._clock = clock
        self._had_runs = False
        self._kept: OrderedDict[tuple[str, bool], _Curves] = OrderedDict()
        self._lock = threading.Lock()

    def answer(self, path: str, query: str = "") -> Response:
        """Returns the answer to a GET of a path below the token.

        What storage cannot give is status 503, and a run that does not exist 404, each with a sentence.
        """
        try:
            return self._answer(path, query)
        except MistakeError as error:
            return _problem(404, error)
        except RaydistError as error:
            return _problem(503, error)

    def _answer(self, path: str, query: str) -> Response:
        match path:
            case "":
                return Response(200, "text/html; charset=utf-8", live_html().encode())
            case "page.js":
                return Response(200, "text/javascript; charset=utf-8", script().encode())
            case "page.css":
                return Response(200, "text/css; charset=utf-8", style().encode())
            case "api/runs":
                return _json(self._runs())
            case _ if path.startswith("api/study/"):
                problems = Problems()
                study = study_list(self._storage, unquote(path.removeprefix("api/study/")), problems)
                return _json(page_json({**study, "problems": problems.sentences}))
            case _ if path.startswith("api/run/"):
                return self._run(unquote(path.removeprefix("api/run/")), parse_qs(query))
            case _:
                return _problem(404, SpecError(f"there is no {path} here"))

    def _runs(self) -> str:
        problems = Problems()
        runs = run_list(self._storage, problems)
        if self._had_runs and not runs and not problems.sentences:
            raise StorageError(f"{self._storage.uri()} holds no runs any more: was it emptied, or unmounted?")
        self._had_runs = self._had_runs or bool(runs)
        return page_json({"storage": self._storage.uri(), "runs": runs, "problems": problems.sentences})

    def _run(self, name: str, query: dict[str, list[str]]) -> Response:
        check_run_name(name)
        storage, problems = RunStorage(self._storage, run=name), Problems()
        facts = gather_facts(storage, problems, now_s=self._clock())
        curves = self._curves(storage, problems, facts["record"], is_compared="compared" in query)
        facts |= {
            "raydist": self._version,
            "problems": problems.sentences,
            "curves_version": curves.version,
        }
        is_known = curves.version in query.get("have", ())
        return _json(page_json(facts, None if is_known else curves.packed))

    def _curves(
        self, storage: RunStorage, problems: Problems, record: Mapping[str, Any], *, is_compared: bool
    ) -> _Curves:
        key = (storage.run, is_compared)
        version = _version(storage.list_names(storage.metrics))
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None and kept.version == version:
            return kept
        own = Problems()
        packed = (
            gather_curves(storage, own, record, num_points=_COMPARED_POINTS, scopes=(Scope.GLOBAL,))
            if is_compared
            else gather_curves(storage, own, record)
        )
        for sentence in own.sentences:
            problems.add(StorageError(sentence))
        found = _Curves(version, packed)
        if not own.sentences:  # what could not be read may be there next time
            with self._lock:
                self._kept[key] = found
                while len(self._kept) > _MAX_KEPT:
                    self._kept.popitem(last=False)
        return found


def _version(names: list[str]) -> str:
    """Returns what stands for these files: none of them is ever written again."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def _json(text: str) -> Response:
    return Response(200, "application/json", text.encode())


def _problem(status: int, error: RaydistError) -> Response:
    return Response(status, "application/json", page_json({"problem": str(error)}).encode())
