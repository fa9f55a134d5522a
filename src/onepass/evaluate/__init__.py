"""`onepass evaluate`: retrieval metrics of a reranker on a judged collection, with intervals and comparisons."""
