"""BM25 as the first stage: the candidates of each query where no run file is given. The scores are bm25s's.

Lucene's formula with the parameters of Anserini's BEIR baselines, English stop words and Snowball's English stemmer.
bm25s and PyStemmer are optional packages (extra `evaluate`). Importing bm25s starts JAX where that is installed, so
that it is imported only when it is needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from onepass.errors import OnepassError
from onepass.evaluate.trec_files import ScoredDocument, ranked


@dataclass(frozen=True)
class Bm25Options:
    k1: float = 0.9
    b: float = 0.4


class Bm25:
    def __init__(self, documents: Mapping[str, str], options: Bm25Options) -> None:
        self._library, self._stemmer = bm25_library()
        self._ids = list(documents)
        self._index: Any = self._library.BM25(k1=options.k1, b=options.b, method="lucene")
        self._index.index(self._tokens(list(documents.values())), show_progress=False)

    def search(self, query: str, depth: int) -> list[ScoredDocument]:
        """The best `depth` documents that share a word with the query."""
        words = [word for word in self._tokens([query])[0] if word in self._index.vocab_dict]
        if not words:
            return []
        scores = np.asarray(self._index.get_scores(words), dtype=np.float32)
        least = np.partition(scores, -depth)[-depth] if depth < len(scores) else 0.0
        places = np.flatnonzero((scores >= least) & (scores > 0))
        return ranked({self._ids[place]: float(scores[place]) for place in places})[:depth]

    def _tokens(self, texts: list[str]) -> Any:
        return self._library.tokenize(
            texts, stopwords="en", stemmer=self._stemmer, return_ids=False, show_progress=False
        )


def bm25_library() -> tuple[ModuleType, Any]:
    """The package bm25s, and a stemmer for it."""
    try:
        import bm25s
        from Stemmer import Stemmer
    except ImportError as error:
        raise OnepassError(
            "BM25 needs bm25s and PyStemmer: pip install 'onepass[evaluate]', or give candidates with --run"
        ) from error
    return bm25s, Stemmer("english")
