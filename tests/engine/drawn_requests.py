"""Requests drawn by hypothesis for the fake device: every field that changes what is computed."""

from typing import Any

from hypothesis import strategies as st

from onepass.api import MODES, ScoreRequest

CONTEXTS = [list(range(100, 100 + n)) for n in (1, 17, 24, 45, 70)] + [[*range(100, 120), *range(300, 310)]]
LENGTHS = st.one_of(st.integers(0, 9), st.sampled_from([0, 0, 20, 39, 40, 41, 50]))
ITEMS = st.lists(LENGTHS, max_size=12)


@st.composite
def requests(draw: st.DrawFn) -> ScoreRequest:
    lengths = draw(ITEMS)
    items = [[7 * place + n for n in range(length)] for place, length in enumerate(lengths)]
    texts = draw(st.none() | st.none() | st.lists(st.sampled_from([1, 2, 5, 11, 30]), min_size=1, max_size=3))
    fields: dict[str, Any] = {"label_token_ids": list(range(draw(st.sampled_from([1, 2, 15, 40]))))}
    if texts is not None:
        fields["continuations"] = [[500 + 50 * place + n for n in range(count)] for place, count in enumerate(texts)]
        if items and draw(st.booleans()):  # each item has its own: one text more or less than its neighbour
            texts = fields["continuations"]
            fields["continuations"] = [texts[: 1 + place % len(texts)] for place in range(len(items))]
    return ScoreRequest(
        query=draw(st.sampled_from(CONTEXTS)) if draw(st.booleans()) else list(range(draw(st.integers(1, 30)))),
        items=items,
        mode=draw(st.sampled_from(MODES)),
        item_first=draw(st.integers(0, 5)) == 0,
        delimiter_token_id=draw(st.sampled_from([None, None, 9])),
        apply_softmax=True,
        label_mass=draw(st.booleans()),
        **fields,
    )
