"""Seeded plain sentences without end, for models that were trained on text.

Their words recur, so that a piece of this text is easier to go on from for whoever has seen the pieces before it:
where isolation is broken, it shows. How the text is cut into a query and items is `workload`.
"""

import numpy as np

WHO = ("the baker", "my aunt", "a young nurse", "the captain", "our neighbour", "the old gardener", "her brother")
DID = ("bought", "painted", "lost", "found", "repaired", "borrowed", "sold", "carried", "hid", "described")
WHAT = ("a small boat", "the red bicycle", "an old clock", "two letters", "a wooden box", "some bread", "a silver ring")
WHERE = ("near the river", "at the market", "in the garden", "behind the church", "on the train", "under the bridge")
WHEN = ("last summer", "this morning", "on Monday", "before the storm", "after lunch", "in the winter", "two days ago")
FORMS = (
    (WHO, DID, WHAT, WHERE, WHEN),
    (WHEN, (", ",), WHO, DID, WHAT, WHERE),
    (WHO, DID, WHAT, (", and",), WHO, DID, WHAT, WHEN),
)


def prose(sentences: int, seed: int) -> str:
    random = np.random.default_rng(seed)

    def one_of[T](choices: tuple[T, ...]) -> T:
        return choices[random.integers(len(choices))]

    def sentence() -> str:
        words = " ".join(one_of(part) for part in one_of(FORMS)).replace(" ,", ",").replace("  ", " ")
        return f"{words[0].upper()}{words[1:]}."

    return " ".join(sentence() for _ in range(sentences))
