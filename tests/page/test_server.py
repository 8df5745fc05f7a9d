"""What the server of `raydist ui` answers, and to whom, over real sockets."""

from __future__ import annotations

import http.client
import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raydist.errors import MistakeError
from raydist.page.server import PageServer, open_server
from raydist.page.site import Site
from raydist.storage.filesystem import Storage
from raydist.storage.run_storage import open_run
from raydist.storage.studies import StudyStore
from tests.support.faulty_http import Fault, FaultyProxy
from tests.support.page_runs import store_comparison, store_metrics, store_record, store_run, store_study
from tests.support.serving import serving


@pytest.fixture
def server(runs: Path) -> Iterator[PageServer]:
    with serving(str(runs)) as server:
        yield server


def get(server: PageServer, path: str, *, method: str = "GET", host: str | None = None) -> tuple[int, Any]:
    """Returns the status of an answer and its content, parsed where it is JSON."""
    address, port = server.server_address[:2]
    connection = http.client.HTTPConnection(str(address), port, timeout=30)
    try:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        response = connection.getresponse()
        content = response.read()
        is_json = response.headers["Content-Type"] == "application/json"
        return response.status, json.loads(content) if is_json else content.decode()
    finally:
        connection.close()


def test_list_has_each_run(server: PageServer) -> None:
    status, answer = get(server, "/secret/api/runs")
    (run,) = answer["runs"]
    assert status == 200
    assert (run["run"], run["state"], run["steps"], run["metrics"]["loss"]) == (
        "digits-1",
        "SUCCEEDED",
        200,
        0.25,
    )
    assert "learning_rate=0.001" in run["words"]


def test_study_has_its_runs_the_best_first(server: PageServer, runs: Path) -> None:
    store_study(runs)
    status, answer = get(server, "/secret/api/study/rates")
    assert (status, answer["metric"], answer["mode"], answer["params"]) == (
        200,
        "val_accuracy",
        "max",
        ["learning_rate"],
    )
    assert [(run["run"], run["value"]) for run in answer["runs"]] == [
        ("rates-1", 0.75),
        ("rates-0", 0.5),
        ("rates-2", None),
    ]


def test_study_is_sorted_by_the_best_values_that_its_search_has_stored(
    server: PageServer, runs: Path
) -> None:
    store_study(runs)  # whose newest values are 0.5 and 0.75
    StudyStore(Storage.open(str(runs))).keep_values("rates", {"rates-0": 0.875})
    _, answer = get(server, "/secret/api/study/rates")
    assert [(run["run"], run["value"]) for run in answer["runs"]] == [
        ("rates-0", 0.875),
        ("rates-1", 0.75),
        ("rates-2", None),
    ]


def test_runs_that_share_a_study_without_a_search_are_compared_by_their_best_value(
    server: PageServer, runs: Path
) -> None:
    for number, loss in enumerate((0.5, 0.25)):
        best = {"name": "val_loss", "value": loss, "step": 9}
        store_record(open_run(str(runs), run=f"own-{number}"), spec={"study": "own"}, best=best)
    _, answer = get(server, "/secret/api/study/own")
    assert (answer["metric"], answer["mode"]) == ("val_loss", "min")
    assert [run["run"] for run in answer["runs"]] == ["own-1", "own-0"]


def test_study_of_compared_runs_has_what_the_command_found(server: PageServer, runs: Path) -> None:
    store_study(runs)
    assert get(server, "/secret/api/study/rates")[1]["comparison"] is None
    store_comparison(runs)
    comparison = get(server, "/secret/api/study/rates")[1]["comparison"]
    assert (comparison["headers"][0], comparison["cells"][0][0]) == ("run", "one device")
    assert comparison["picture"].startswith("<svg")
    (runs / ".studies" / "rates" / "comparison.json").write_text("[1")
    _, answer = get(server, "/secret/api/study/rates")
    assert (answer["comparison"], len(answer["runs"])) == (None, 3)
    assert "comparison.json is damaged" in answer["problems"][0]


def test_study_of_no_run_and_a_damaged_one_are_told(server: PageServer, runs: Path) -> None:
    assert get(server, "/secret/api/study/none") == (
        404,
        {"problem": f"no run in {runs} belongs to the study 'none'"},
    )
    store_study(runs)
    (runs / ".studies" / "rates" / "study.json").write_text("{")
    status, answer = get(server, "/secret/api/study/rates")
    assert (status, len(answer["runs"]), answer["metric"]) == (200, 3, None)
    assert "study.json is damaged" in answer["problems"][0]


def test_curves_that_the_page_has_are_not_sent_again(server: PageServer) -> None:
    _, first = get(server, "/secret/api/run/digits-1")
    _, again = get(server, f"/secret/api/run/digits-1?have={first['curves_version']}")
    assert first["curves"]["points"] > 0
    assert "curves" not in again
    assert again["record"] == first["record"]


def test_new_values_are_sent(server: PageServer, runs: Path) -> None:
    _, first = get(server, "/secret/api/run/digits-1")
    store_metrics(open_run(str(runs), run="digits-1"), steps=range(201, 211), attempt=1)
    _, later = get(server, f"/secret/api/run/digits-1?have={first['curves_version']}")
    assert later["curves"]["points"] > first["curves"]["points"]


@pytest.mark.parametrize("path", ["/", "/api/runs", "/wrong/api/runs", "/secret", "/secret2/api/runs"])
def test_who_has_no_token_learns_nothing(server: PageServer, path: str) -> None:
    status, answer = get(server, path)
    assert status == 403
    assert "digits" not in answer


def test_name_of_another_site_is_refused(server: PageServer) -> None:
    assert get(server, "/secret/api/runs", host="evil.example")[0] == 403
    assert get(server, "/secret/api/runs", host="localhost:1")[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_only_get_is_answered(server: PageServer, method: str) -> None:
    assert get(server, "/secret/api/runs", method=method)[0] == 501


@pytest.mark.parametrize(
    "path",
    ["/secret/../../etc/passwd", "/secret/page.py", "/secret/api/run/..%2F..%2Fetc", "/secret/api/run/"],
)
def test_what_is_not_there_is_a_sentence(server: PageServer, path: str) -> None:
    status, answer = get(server, path)
    assert status == 404
    assert list(answer) == ["problem"]


def test_run_that_does_not_exist_has_its_near_names(server: PageServer) -> None:
    status, answer = get(server, "/secret/api/run/digits-2")
    assert (status, "did you mean digits-1?" in answer["problem"]) == (404, True)


def test_answers_permit_nothing_from_elsewhere(server: PageServer) -> None:
    address, port = server.server_address[:2]
    connection = http.client.HTTPConnection(str(address), port, timeout=30)
    connection.request("GET", "/secret/")
    headers = connection.getresponse().headers
    connection.close()
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self';")
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert (headers["Referrer-Policy"], headers["Cache-Control"]) == ("no-referrer", "no-store")


def test_damaged_record_is_listed_and_named(server: PageServer, runs: Path) -> None:
    open_run(str(runs), run="torn").write_text("torn/run.json", "{")
    _, answer = get(server, "/secret/api/runs")
    assert [(run["run"], run["state"]) for run in answer["runs"]] == [
        ("digits-1", "SUCCEEDED"),
        ("torn", None),
    ]
    assert "torn/run.json is damaged" in answer["problems"][0]


def test_storage_that_goes_away_is_told_and_comes_back(server: PageServer, runs: Path) -> None:
    assert get(server, "/secret/api/runs")[0] == 200
    shutil.move(runs, runs.with_name("elsewhere"))
    status, answer = get(server, "/secret/api/runs")
    assert (status, "holds no runs any more" in answer["problem"]) == (503, True)
    assert get(server, "/secret/api/run/digits-1")[0] == 404
    shutil.move(runs.with_name("elsewhere"), runs)
    assert get(server, "/secret/api/run/digits-1")[0] == 200


def test_object_store_that_fails_is_told_and_comes_back(s3_uri: str, proxy: FaultyProxy) -> None:
    store_run(open_run(s3_uri, run="digits-1"))
    with serving(s3_uri) as server:
        assert get(server, "/secret/api/run/digits-1")[0] == 200
        proxy.choose = lambda request: Fault.FORBIDDEN
        for path in ("/secret/api/runs", "/secret/api/run/digits-1"):
            status, answer = get(server, path)
            assert (status, list(answer)) == (503, ["problem"])
        proxy.choose = lambda request: None
        assert get(server, "/secret/api/run/digits-1")[1]["record"]["steps"] == 200


def test_several_pages_at_a_time_get_whole_answers(server: PageServer, runs: Path) -> None:
    answers: list[tuple[int, int]] = []

    def ask() -> None:
        for _ in range(5):
            status, answer = get(server, "/secret/api/run/digits-1")
            answers.append((status, answer["curves"]["points"] > 0))

    askers = [threading.Thread(target=ask) for _ in range(4)]
    for asker in askers:
        asker.start()
    run = open_run(str(runs), run="digits-1")
    for step in range(10):
        store_record(run, steps=200 + step)
    for asker in askers:
        asker.join()
    assert answers == [(200, True)] * 20


def test_port_that_is_taken_is_a_sentence(server: PageServer, runs: Path) -> None:
    site = Site(Storage.open(str(runs)), version="1")
    with pytest.raises(MistakeError, match=r"cannot be listened on: .*; give another --port"):
        open_server(site, host="127.0.0.1", port=server.server_address[1], token=None)
    with pytest.raises(MistakeError, match="cannot be listened on"):
        open_server(site, host="192.0.2.77", port=0, token=None)
