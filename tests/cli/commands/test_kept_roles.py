"""What a resume and a repetition take over of extra roles."""

from __future__ import annotations

import pytest

from raydist.cli.kept_job import check_roles, kept_settings, lost_secrets
from raydist.errors import MistakeError
from raydist.storage.run_record import SpecText

OPEN: SpecText = {"roles": {"features": {"command": ["serve", "--port", "7000"]}}}
SECRET: SpecText = {"roles": {"features": {"command": ["serve", "--token", "***"]}}}


def test_roles_are_taken_over() -> None:
    settings = kept_settings(OPEN)
    assert settings["roles"] == OPEN["roles"]
    check_roles("r", OPEN, settings=settings)


def test_roles_with_a_lost_secret_have_to_be_given_again() -> None:
    settings = kept_settings(SECRET)
    assert "roles" not in settings
    assert lost_secrets(SECRET, layers=[settings]) == [
        "the secrets in the commands of roles are not kept; write roles again"
    ]
    with pytest.raises(
        MistakeError, match="the roles of run r have a secret, which is not kept; write roles"
    ):
        check_roles("r", SECRET, settings=settings)
    check_roles("r", SECRET, settings={**settings, "roles": OPEN["roles"]})
