"""What a resume takes over of settings that were redacted in the record: nothing, and it says so."""

from __future__ import annotations

from raydist.cli.kept_job import kept_settings, lost_secrets

SPEC = {
    "workers": "2",
    "params": {
        "api_key": "***",
        "data": "s3://***@bucket/data",
        "mirrors": ["https://host/x?sig=***"],
        "epochs": 3,
        "note": "with the token ***",
    },
}


def test_param_that_was_redacted_is_not_taken_over() -> None:
    assert kept_settings(SPEC) == {"workers": "2", "params": {"epochs": 3}}


def test_param_that_was_redacted_is_asked_for() -> None:
    assert lost_secrets(SPEC, layers=[kept_settings(SPEC)]) == [
        "secrets are not kept; give api_key, data, mirrors, note with -p"
    ]
    given = {"params": {"api_key": "k", "data": "d", "mirrors": [], "note": ""}}
    assert lost_secrets(SPEC, layers=[given]) == []
