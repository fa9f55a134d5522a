"""A reranker that does not tell how it is read is not served, before anything is loaded; who insists gets it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from onepass import ConfigError
from onepass.cli.main import build_parser
from onepass.cli.serve import options_of
from onepass.loading.model import open_model
from onepass.loading.rerankers.readouts import ClassHead
from onepass.server.engines.worker import refuse_unknown_reranker


def test_an_unknown_reranker_is_refused_with_what_to_give(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    model = open_model(str(shutil.copytree(checkpoint("qwen3"), tmp_path / "acme-reranker")))
    with pytest.raises(ConfigError, match=r"acme-reranker is a reranker .*--template FILE.*--rank-by likelihood"):
        refuse_unknown_reranker(model)
    refuse_unknown_reranker(open_model(str(checkpoint("qwen3"))))
    refuse_unknown_reranker(replace(model, class_head=ClassHead.of(["LABEL_0"], None)))


def test_rank_by_reaches_the_engine() -> None:
    args = build_parser().parse_args(["serve", "m", "--rank-by", "likelihood"])
    assert options_of(args, "").engine.rank_by == "likelihood"
    assert options_of(build_parser().parse_args(["serve", "m"]), "").engine.rank_by == "auto"
