"""Campaigns of generated programs: each is run once, and one that ends its process is known by its number."""

from tests.tooling.counting import CAMPAIGN, ENDS, FAILS


def test_every_program_is_run_once() -> None:
    found = list(CAMPAIGN.outcomes(7, 12, jobs=2))
    assert sorted(each["seed"] for each in found) == list(range(7, 19))
    wrong = {each["seed"]: each["failure"] for each in found if each["failure"]}
    assert wrong.keys() == {FAILS, ENDS} and wrong[FAILS] == "it is wrong"
    assert wrong[ENDS].startswith(f"program {ENDS} ends the process with status 3")
    assert f"program({ENDS})" in wrong[ENDS]
