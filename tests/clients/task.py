"""What every client is asked to do: rank five facts by a question that the default model answers rightly."""

MODEL = "smollm2-135m"
ALIASES = ("rerank-v3.5", "jina-reranker-v2-base-multilingual")  # LibreChat sends these, whatever is configured
KEY = "the-right-key"
QUERY = "why does bread dough get bigger"
DOCUMENTS = [
    "The Moon pulls the oceans towards it, and the water rises and falls twice a day.",
    "Yeast eats sugar and gives off carbon dioxide, so that the dough rises.",
    "Leaves lose their green chlorophyll in autumn and turn yellow and red.",
    "Iron combines with oxygen and water and turns into rust.",
    "A rainbow appears when sunlight is bent inside drops of rain.",
]
