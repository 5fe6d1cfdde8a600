"""Five trainers of TRL: is the training the same at every split? On a CPU, in under a minute."""

from functools import partial

import pytest
import torch
import transformers as tf
import trl
from tokenizers import Tokenizer, models, pre_tokenizers

import isobatch as ib

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # TRL announces its changes by them
WORDS = [f"w{number}" for number in range(40)]
SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
TOKENS = {"vocab_size": 42, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}


def model(kind="LlamaForCausalLM", **further):
    torch.manual_seed(0)
    return getattr(tf, kind)(tf.LlamaConfig(**SIZES, **TOKENS, **further))


def text(count, first):
    return " ".join(WORDS[(first + 7 * place) % 40] for place in range(count))


words = Tokenizer(
    models.WordLevel({"<pad>": 0, "<eos>": 1, **{w: n + 2 for n, w in enumerate(WORDS)}}, "<eos>")
)
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
PAIRS = [
    {"prompt": text(3, n), "chosen": " " + text(2 + n, n), "rejected": " " + text(9 - n, n + 1)}
    for n in range(8)
]
TEXTS = [{"text": row["prompt"] + row["chosen"]} for row in PAIRS]
LABELLED = [
    {"prompt": row["prompt"], "completion": row["chosen"], "label": n % 2 == 0} for n, row in enumerate(PAIRS)
]
SCORED = partial(model, "LlamaForSequenceClassification", num_labels=1)


@pytest.mark.parametrize(
    ("trainer", "make", "rows", "arguments"),
    [
        (trl.SFTTrainer, model, TEXTS, {}),
        (trl.SFTTrainer, model, TEXTS, {"loss_type": "dft"}),
        (partial(trl.DPOTrainer, ref_model=model()), model, PAIRS, {}),
        (partial(trl.DPOTrainer, ref_model=model()), model, PAIRS, {"loss_type": ["ipo"]}),
        (trl.RewardTrainer, SCORED, PAIRS, {}),
    ],
)
def test_the_split_does_not_change_the_training(trainer, make, rows, arguments):
    bound = partial(trainer, processing_class=tokenizer)
    ib.same_model(make(), rows, trainer=bound, arguments=arguments).require()
