"""Classes and rewards of texts and conversations."""

from onepass.server import classify as classifying
from onepass.server.routes.operation import Operation
from onepass.server.schema import tei
from onepass.server.schema.classification import classify, predict, rewards

CLASSES = (
    "Classes are those of the model's classification head, or the labels of its reranking template, or `labels`; a "
    "model with neither is refused without `labels`. Prompts that begin alike share their beginning's computation."
)
REWARDS = (
    "The raw value of a head with a single class, or the log-odds of the first label; a model with several classes, "
    "none of them called yes or positive, is refused."
)
CLASSIFICATION = (
    Operation(
        "POST",
        ("/classify", "/v1/classify"),
        "classify",
        "Class probabilities of texts or a conversation, as vLLM answers it",
        "Classification",
        classifying.answer_classify,
        (classify.BODY,),
        (classify.ANSWER,),
        CLASSES,
    ),
    Operation(
        "POST",
        ("/predict",),
        "predict",
        "The same in the dialect of Text Embeddings Inference, also for pairs",
        "Classification",
        classifying.answer_predict,
        (predict.BODY,),
        (predict.ANSWER,),
        CLASSES + " A pair is put in the words of the model's reranking template, or joined by its tokenizer.",
        (tei.ERROR,),
    ),
    Operation(
        "POST",
        ("/v1/rewards", "/rewards"),
        "rewards",
        "A reward for each response, conversation or text",
        "Classification",
        classifying.answer_rewards,
        (rewards.BODY,),
        (rewards.ANSWER,),
        REWARDS,
    ),
    Operation(
        "POST",
        ("/get_reward",),
        "get_reward",
        "The same as OpenRLHF's trainer asks its remote reward model",
        "Classification",
        classifying.answer_get_reward,
        (rewards.OPENRLHF_BODY,),
        (rewards.OPENRLHF_ANSWER,),
        REWARDS,
    ),
    Operation(
        "POST",
        ("/pooling",),
        "pooling",
        "Classes and rewards as vLLM's pooling answers them",
        "Classification",
        classifying.answer_pooling,
        (classify.POOLING_BODY,),
        (classify.POOLING_ANSWER,),
        CLASSES + " Embeddings are not served.",
    ),
)
