"""Bodies and answers of classifiers and reward models: vLLM's, TEI's, OpenRLHF's and our own."""
