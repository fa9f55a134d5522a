"""The table of operations: which path and method does what, and with which shapes. The router and the OpenAPI
document are both made from it and from `pages`, so neither can tell of an operation that the other does not know."""

from onepass.server.routes.classification import CLASSIFICATION
from onepass.server.routes.contexts import CONTEXTS, TOKENS
from onepass.server.routes.decisions import DECISIONS
from onepass.server.routes.ranking import RANKING
from onepass.server.routes.scoring import MODES, SCORING

OPERATIONS = (*SCORING, *RANKING, *CLASSIFICATION, *DECISIONS, MODES, *CONTEXTS, *TOKENS)
