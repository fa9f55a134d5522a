"""What a validation leaves in its files."""

from onepass.validate.report import markdown
from onepass.validate.settings import Settings
from onepass.validate.suite import Run


def test_the_page_names_pytorchs_version_and_how_it_was_asked_for() -> None:
    run = Run("tiny", "float32", Settings(torch="require"), [], [1], 1.0, {"torch": "9.9.9", "torch's device": "cpu"})
    lines = markdown(run, ["onepass", "validate", "tiny"]).splitlines()
    assert {"- torch: 9.9.9", "- torch: require", "- torch's device: cpu"} <= set(lines)
