"""A quantised GGUF file scored with its blocks as they are: the numbers of the widened file, in less memory."""

from pathlib import Path

import jax
import numpy as np

from onepass import Scorer

QUERY = "Review: The food was delicious. Sentiment: positive. Review:"
ITEMS = [" It was a complete waste of time. Sentiment:", " I loved every minute of it. Sentiment:", " Fine. Sentiment:"]


def test_blocks_of_a_real_file_score_as_the_widened_file(smollm2_gguf: Path) -> None:
    scores, sizes = [], []
    # Activations as they are, on CPUs that would quantise them, too.
    for options in ({"quantize": "none"}, {"quantize": "int8", "quantize_activations": False}):
        with Scorer.load(str(smollm2_gguf), dtype="float32", **options) as scorer:  # type: ignore[arg-type]
            scores.append(np.asarray(scorer.score(QUERY, ITEMS, [" positive", " negative"]).scores))
            sizes.append(sum(array.nbytes for array in jax.tree.leaves(scorer.weights)))
    np.testing.assert_allclose(scores[1], scores[0], atol=1e-5)
    assert sizes[1] < sizes[0] / 2
