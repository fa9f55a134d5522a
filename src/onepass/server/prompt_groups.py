"""Prompts of one call in groups that begin with the same tokens, so that each beginning is computed once."""

from collections.abc import Sequence

from onepass.engine.encoding.ids import Ids

MIN_SHARED_TOKENS = 16


def shared_beginnings(prompts: Sequence[Ids]) -> list[tuple[list[int], int]]:
    """Prompts by number in groups, and how many tokens those of a group have in common at their beginning. A prompt
    joins a group where that saves more tokens than the group loses by its shorter beginning."""
    groups: list[tuple[list[int], int]] = []
    members: list[int] = []
    shared: Ids = ()
    for number in sorted(range(len(prompts)), key=prompts.__getitem__):
        common = _common_tokens(shared, prompts[number]) if members else 0
        if common >= MIN_SHARED_TOKENS and len(members) * common >= (len(members) - 1) * len(shared):
            members.append(number)
            shared = shared[:common]
            continue
        if members:
            groups.append((members, len(shared)))
        members, shared = [number], prompts[number]
    return [*groups, (members, len(shared))] if members else groups


def _common_tokens(one: Ids, other: Ids) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
