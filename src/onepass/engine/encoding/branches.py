"""`BranchedRequest`: items that each end in the same branches, with labels read at the end of every branch.

A grid in one pass: the context is computed once, each item once, and each branch once per item. A result has a row per
item and branch, the branches of the first item first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from onepass.api import ScoreRequest


@dataclass(frozen=True, kw_only=True)
class BranchedRequest(ScoreRequest):
    """Token ids only: of the branches, and of the labels that are read after each."""

    branches: Sequence[Sequence[int]]
    branch_label_token_ids: Sequence[Sequence[int]]
