"""Documents by how well they answer a query, in the dialects of several vendors."""

from onepass.server import handlers
from onepass.server.routes.operation import Operation
from onepass.server.schema import nvidia, rerank, sglang, tei, voyage

RERANK_PATHS = ("/rerank", "/v1/rerank", "/v2/rerank", handlers.INFINITY_PATH)
DIALECTS = (
    "`documents` is Jina's, Cohere's and vLLM's dialect; with `top_k` or `truncation`, Voyage's; `texts` is that of "
    "Text Embeddings Inference, whose errors have a form of their own (`error` is a string). The header "
    "`X-Compat: sglang` asks for SGLang's answer; `X-Compat: infinity` or the path `/infinity/rerank` for Infinity's. "
    "`/v2/rerank` tells documents only when asked. An empty list of documents is refused, as the vendors do."
)
DIALECTS = (
    "`documents` is Jina's, Cohere's and vLLM's dialect; with `top_k` or `truncation`, Voyage's; `texts` is that of "
    "Text Embeddings Inference, whose errors have a form of their own (`error` is a string). The header "
    "`X-Compat: sglang` asks for SGLang's answer; `X-Compat: infinity` or the path `/infinity/rerank` for Infinity's. "
    "`/v2/rerank` tells documents only when asked. An empty list of documents is refused, as the vendors do."
)
RANKING = (
    Operation(
        "POST",
        RERANK_PATHS,
        "rerank",
        "Documents by how well they answer a query, best first",
        "Ranking",
        handlers.answer_rerank,
        (rerank.BODY, voyage.BODY, tei.BODY),
        (rerank.ANSWER, voyage.ANSWER, tei.ANSWER, sglang.ANSWER),
        DIALECTS,
        (tei.ERROR,),
    ),
    Operation(
        "POST",
        ("/v1/ranking", "/ranking"),
        "ranking",
        "The same in NVIDIA NIM's dialect",
        "Ranking",
        handlers.answer_nvidia,
        (nvidia.BODY,),
        (nvidia.ANSWER,),
    ),
)
