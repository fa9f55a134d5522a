"""Contexts that are kept, and texts as tokens."""

from onepass.server import handlers
from onepass.server.routes.operation import Operation
from onepass.server.schema import contexts, tokenize

CONTEXTS = (
    Operation(
        "POST",
        ("/v1/contexts",),
        "open_context",
        "Compute a query's context now and keep it",
        "Contexts",
        handlers.open_context,
        (contexts.BODY,),
        (contexts.ANSWER,),
    ),
    Operation(
        "GET",
        ("/v1/contexts/{context_id}",),
        "find_context",
        "A kept context",
        "Contexts",
        handlers.find_context,
        (),
        (contexts.ANSWER,),
    ),
    Operation(
        "DELETE",
        ("/v1/contexts/{context_id}",),
        "close_context",
        "Let a kept context go",
        "Contexts",
        handlers.close_context,
        (),
        (contexts.CLOSED,),
    ),
)
TOKENS = (
    Operation(
        "POST",
        ("/tokenize", "/v1/tokenize"),
        "tokenize",
        "Text to token ids",
        "Tokens",
        handlers.answer_tokenize,
        (tokenize.BODY,),
        (tokenize.ANSWER,),
    ),
    Operation(
        "POST",
        ("/detokenize", "/v1/detokenize"),
        "detokenize",
        "Token ids to text",
        "Tokens",
        handlers.answer_detokenize,
        (tokenize.DETOKENIZE_BODY,),
        (tokenize.DETOKENIZE_ANSWER,),
    ),
)
