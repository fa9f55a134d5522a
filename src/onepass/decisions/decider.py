"""A `DecisionRequest` into the one `ScoreRequest` that answers it, and its result into a `DecisionResult`.

    request ─► prompt (head, tail) ─► reads: question × rotation of its options ─► items with labels of their own
    logits per read ─► calibrated probabilities ─► averaged over rotations ─► answers

With candidates, a candidate is an item and every read is a branch of it (`engine.encoding.branches`). Running the
request is the engine's work; the words are `prompt`, the labels `labels`.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from onepass.api import ScoreRequest, ScoreResult
from onepass.decisions.calibration import IDENTITY, Calibration
from onepass.decisions.labels import AnswerLabel, AnswerLabels
from onepass.decisions.prompt import candidate_text, decision_prompt, question_text
from onepass.decisions.questions import DecisionRequest, Question, question_path
from onepass.decisions.result import DecisionAnswer, DecisionResult
from onepass.decisions.state import State, state_of
from onepass.engine.encoding.branches import BranchedRequest
from onepass.engine.encoding.text_limits import naming
from onepass.errors import RequestError, TooLong
from onepass.loading.chat.template import ChatTemplates
from onepass.loading.tokenizer import TextTokenizer

KEPT_TAILS = 32
UNCHECKED_CHARS = 1 << 20  # a template writes so many at once; the tokenizer checks them


@dataclass(frozen=True)
class Read:
    """One question with its options in one order: option `order[j]` stands at position j under label j."""

    question: int
    order: tuple[int, ...]
    labels: tuple[AnswerLabel, ...]


@dataclass(frozen=True)
class DecisionPlan:
    """What the engine scores for a request, and how its result is read."""

    request: DecisionRequest
    score_request: ScoreRequest
    reads: tuple[Read, ...]
    calibration: Calibration | None

    def result(self, scored: ScoreResult) -> DecisionResult:
        count = len(self.reads)
        rows = range(0, len(scored.scores), count)
        return DecisionResult(
            answers=tuple(self._answers(scored, first) for first in rows),
            model=scored.model,
            usage=scored.usage,
            timings=scored.timings,
            mode=scored.mode,
            reason=scored.reason,
            calibration=None if self.calibration is None else self.calibration.name,
            candidates=self.request.candidates,
            num_reads=len(scored.scores),
        )

    def _answers(self, scored: ScoreResult, first: int) -> tuple[DecisionAnswer, ...]:
        reads: list[list[int]] = [[] for _ in self.request.questions]
        for index, read in enumerate(self.reads):
            reads[read.question].append(index)
        return tuple(
            self._answer(question, [self.reads[i] for i in own], [first + i for i in own], scored)
            for question, own in zip(self.request.questions, reads, strict=True)
        )

    def _answer(self, question: Question, reads: list[Read], rows: list[int], scored: ScoreResult) -> DecisionAnswer:
        assert scored.label_mass is not None
        calibration = IDENTITY if self.calibration is None else self.calibration.of(question.type)
        by_order = np.zeros((len(reads), len(question.options)))
        for values, read, row in zip(by_order, reads, rows, strict=True):
            values[list(read.order)] = calibration.apply(np.array(scored.logits[row]), self.request.temperature)
        mean = by_order[0] if len(reads) == 1 else by_order.mean(axis=0)  # numpy's mean takes longer than all else here
        mean /= mean.sum()
        masses = [scored.label_mass[row] for row in rows]
        spread = float(np.ptp(by_order, axis=0).max()) if self.request.permutations > 1 else None
        return DecisionAnswer(
            name=question.name,
            type=question.type,
            values=tuple(option.value for option in question.options),
            probabilities=tuple(mean.tolist()),
            label_mass=min(1.0, sum(masses) / len(masses)),
            spread=spread,
        )


class Decider:
    """Plans decisions for one model. Thread-safe."""

    def __init__(
        self,
        tokenizer: TextTokenizer | None,
        templates: ChatTemplates,
        calibration: Calibration | None = None,
        max_tokens: int | None = None,
    ) -> None:
        """`max_tokens` spares tokenising a text that is sure to be longer than the model's context."""
        self._tokenizer = tokenizer
        self._templates = templates
        self._max_tokens = max_tokens
        self.calibration = calibration
        self._labels = lru_cache(maxsize=KEPT_TAILS)(self._labels_after)

    def plan(self, request: DecisionRequest, tokenizer: TextTokenizer | None = None) -> DecisionPlan:
        """`tokenizer` takes the place of the decider's own: the same one, which a caller can interrupt."""
        tokenizer = tokenizer or self._tokenizer
        if tokenizer is None:
            raise RequestError("no_tokenizer", "this model has no tokenizer, and questions are text", "questions")
        request.check()
        state = state_of(request.state, request.state_name)
        self._check_size(state, request.state_name, tokenizer)
        prompt = decision_prompt(self._templates, state)
        reads = self._reads(request, self._labels(prompt.tail))
        texts = [
            question_text(request.questions[read.question], read.order, [label.text for label in read.labels])
            + prompt.tail
            for read in reads
        ]
        with naming(f"the {request.state_name}", request.state_name):
            encode = tokenizer.encode_item if prompt.from_template else tokenizer.encode_query
            context = encode(prompt.head, self._max_tokens)
        with naming("read {} of the questions", "questions"):
            items = tokenizer.encode_items(texts, self._max_tokens)
        candidates = self._candidates(request, tokenizer)
        self._check_lengths(request, context, candidates, [read.question for read in reads], items)
        score_request = ScoreRequest(
            query=context,
            items=items,
            label_token_ids=[[label.token for label in read.labels] for read in reads],
            apply_softmax=True,
            mode=request.mode,
        )
        if candidates is not None:
            score_request = _branched(score_request, candidates)
        return DecisionPlan(request, score_request, tuple(reads), self.calibration if request.calibrated else None)

    def _candidates(self, request: DecisionRequest, tokenizer: TextTokenizer) -> list[list[int]] | None:
        if request.candidates is None:
            return None
        with naming("candidates[{}]", "candidates"):
            return tokenizer.encode_items(list(map(candidate_text, request.candidates)), self._max_tokens)

    def _check_size(self, state: State, name: str, tokenizer: TextTokenizer) -> None:
        """Of the state alone, in bytes: a chat template would take its time with a text that no context holds."""
        limit = self._max_tokens
        if limit is None or len(state.text) <= UNCHECKED_CHARS:
            return
        if (size := tokenizer.bounds.exceeds(state.text, limit)) is not None:
            most = tokenizer.bounds.max_bytes(limit)
            raise TooLong(f"the {name} has {size:,} bytes; {limit:,} tokens, the limit, have at most {most:,}", name)

    def _check_lengths(
        self,
        request: DecisionRequest,
        context: list[int],
        candidates: list[list[int]] | None,
        questions: list[int],
        items: list[list[int]],
    ) -> None:
        """What the engine checks too, in the words of the caller, who knows neither its query nor its items."""
        limit, name = self._max_tokens, request.state_name
        if limit is None:
            return
        if len(context) > limit:
            raise TooLong(f"the {name} has {len(context):,} tokens; the limit is {limit:,}", name)
        lengths = list(map(len, candidates or ()))
        total = len(context) + max(lengths, default=0) + max(map(len, items))
        if total <= limit:
            return
        read = max(range(len(items)), key=lambda i: len(items[i]))
        path = question_path(request.questions[questions[read]], questions[read])
        parts = [f"{len(context):,} of the {name}"]
        parts += [f"{max(lengths):,} of candidates[{lengths.index(max(lengths))}]"] if lengths else []
        parts.append(f"{len(items[read]):,} of {path} with its options")
        raise TooLong(f"a prompt has {total:,} tokens ({', '.join(parts)}); the limit is {limit:,}", path)

    def _reads(self, request: DecisionRequest, labels: AnswerLabels) -> list[Read]:
        reads = []
        for index, question in enumerate(request.questions):
            count = len(question.options)
            own = labels.yes_no() if question.type == "predicate" else labels.first(count)
            words = question.type == "predicate" and own != labels.first(2)
            for order in rotations(count, request.permutations):
                # Words keep their meaning wherever they stand; letters belong to positions.
                shown = [own[i] for i in order] if words else own
                reads.append(Read(index, order, tuple(shown)))
        return reads

    def _labels_after(self, tail: str) -> AnswerLabels:
        assert self._tokenizer is not None
        return AnswerLabels(self._tokenizer, tail)


def _branched(request: ScoreRequest, candidates: list[list[int]]) -> BranchedRequest:
    """The request's items as branches of every candidate."""
    return BranchedRequest(
        query=request.query,
        items=candidates,
        branches=request.items,  # type: ignore[arg-type]  # token ids, as `plan` made them
        branch_label_token_ids=request.label_token_ids,  # type: ignore[arg-type]
        apply_softmax=True,
        mode=request.mode,
    )


def rotations(count: int, wanted: int) -> list[tuple[int, ...]]:
    """`wanted` rotations of `count` options, evenly apart and the given order first; no more than there are options."""
    wanted = min(wanted, count)
    shifts = [step * count // wanted for step in range(wanted)]
    return [tuple((place + shift) % count for place in range(count)) for shift in shifts]
