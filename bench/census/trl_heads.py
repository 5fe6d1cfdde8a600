"""Trainers of TRL and adapters of PEFT on a tiny Llama: each trainer with every loss type that it has."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from census.ask import answer

SIZES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
WORDS = [f"w{number}" for number in range(40)]
TEMPLATE = "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
LENGTHS = (12, 5, 9, 3, 6, 11, 7, 10)
DPO = ("sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot",
       "aot_unpaired", "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm")  # fmt: skip
GRPO = ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo")
CPO = ("sigmoid", "hinge", "ipo", "simpo")
KTO = ("kto", "apo_zero_unpaired")
TPO = ("sigmoid", "hinge", "ipo", "tpo-l")
TOKENS_ALONE = "vespo"
"""The loss of GRPO that refuses importance sampling by sequences; luspo refuses that by tokens."""


def questions() -> Iterator[tuple[str, str, Callable[[], dict[str, Any]]]]:
    """Yields each trainer and loss type: its name, its package, and how it is asked."""
    makers = {
        **{
            f"SFTTrainer, loss_type={kind}": partial(_sft, loss_type=kind)
            for kind in ("nll", "dft", "chunked_nll")
        },
        **{f"DPOTrainer, loss_type={kind}": partial(_dpo, **_dpo_kind(kind)) for kind in DPO},
        **{f"KTOTrainer, loss_type={kind}": partial(_kto, loss_type=kind) for kind in KTO},
        "RewardTrainer": _reward,
        "ORPOTrainer": partial(_experimental, "orpo", "ORPO"),
        **{f"CPOTrainer, loss_type={k}": partial(_experimental, "cpo", "CPO", loss_type=k) for k in CPO},
        **{f"TPOTrainer, loss_type={k}": partial(_tpo, loss_type=k) for k in TPO},
        "GKDTrainer": partial(_distill, "trl.experimental.gkd", "GKDTrainer"),
        "GOLDTrainer": partial(_distill, "trl.experimental.gold", "GOLDTrainer", max_completion_length=32),
        "DistillationTrainer": _distillation,
        "OnlineDPOTrainer": _online_dpo,
        **{f"GRPOTrainer, {_words(kind)}": partial(_grpo, "GRPO", **kind) for kind in _grpo_kinds()},
        **{
            f"RLOOTrainer, {_words(kind)}": partial(_grpo, "RLOO", **kind)
            for beta in (0, 0.05)
            for kind in ({"beta": beta}, {"beta": beta, "normalize_advantages": True})
        },
    }
    for name, maker in makers.items():
        yield name, "trl", partial(_ask, maker)
    for name in ("AdaLora", "LoRA", "IA3"):
        yield f"{name} on LlamaForCausalLM", "peft", partial(_ask, partial(_adapter, name))


def _ask(maker: Callable[[], tuple[Any, Any, Any, dict[str, Any]]]) -> dict[str, Any]:
    model, rows, trainer, arguments = maker()
    return answer(model, rows, trainer=trainer, arguments={"learning_rate": 1e-3, **arguments})


def language_model(seed: int = 0, kind: str = "LlamaForCausalLM", **further: Any) -> Any:
    """Makes a tiny Llama with unequal weights."""
    import transformers

    torch.manual_seed(seed)
    tokens = {"vocab_size": len(WORDS) + 2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    config = transformers.LlamaConfig(**{**tokens, **SIZES, **further})
    model = getattr(transformers, kind)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return model


def byte_tokenizer() -> Any:
    """Makes a tokenizer of bytes, of 258 tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    text = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, []))
    text.pre_tokenizer, text.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=text, pad_token="<pad>", eos_token="<eos>", chat_template=TEMPLATE
    )


def tokenizer() -> Any:
    """Makes a tokenizer of forty words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(
        models.WordLevel({"<pad>": 0, "<eos>": 1, **{w: 2 + n for n, w in enumerate(WORDS)}}, "<eos>")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", chat_template=TEMPLATE
    )


def _text(count: int, seed: int) -> str:
    places = torch.randint(0, len(WORDS), (count,), generator=torch.Generator().manual_seed(seed))
    return " ".join(WORDS[place] for place in places.tolist())


def _pairs() -> list[dict[str, str]]:
    """Makes rows of a prompt with a chosen and a rejected answer of unequal lengths."""
    return [
        {
            "prompt": _text(3, n),
            "chosen": " " + _text(count, 50 + n),
            "rejected": " " + _text(14 - count, 90 + n),
        }
        for n, count in enumerate(LENGTHS)
    ]


def _sft(**arguments: Any) -> Any:
    from trl import SFTTrainer

    rows = [{"text": _text(count + 2, n)} for n, count in enumerate(LENGTHS)]
    return language_model(), rows, partial(SFTTrainer, processing_class=tokenizer()), arguments


def _dpo(**arguments: Any) -> Any:
    from trl import DPOTrainer

    trainer = partial(DPOTrainer, ref_model=language_model(1), processing_class=tokenizer())
    return language_model(), _pairs(), trainer, arguments


def _dpo_kind(kind: str) -> dict[str, Any]:
    return {"loss_type": [kind], **({"label_smoothing": 1e-3} if kind in ("exo_pair", "robust") else {})}


def _kto(**arguments: Any) -> Any:
    from trl import KTOTrainer

    rows = [
        {"prompt": row["prompt"], "completion": row["chosen"], "label": number % 2 == 0}
        for number, row in enumerate(_pairs())
    ]
    trainer = partial(KTOTrainer, ref_model=language_model(1), processing_class=tokenizer())
    return language_model(), rows, trainer, arguments


def _reward() -> Any:
    from trl import RewardTrainer

    model = language_model(0, "LlamaForSequenceClassification", num_labels=1)
    return model, _pairs(), partial(RewardTrainer, processing_class=tokenizer()), {}


def _experimental(folder: str, name: str, **arguments: Any) -> Any:
    from importlib import import_module

    kind = getattr(import_module(f"trl.experimental.{folder}"), f"{name}Trainer")
    return language_model(), _pairs(), partial(kind, processing_class=tokenizer()), arguments


def _tpo(**arguments: Any) -> Any:
    from trl.experimental.tpo import TPOTrainer

    rows = [{**row, "reference": " " + _text(8, 70 + n)} for n, row in enumerate(_pairs())]
    return language_model(), rows, partial(TPOTrainer, processing_class=tokenizer()), arguments


def _distill(module: str, name: str, **arguments: Any) -> Any:
    """The rows' own completions are learned from a teacher: nothing is generated."""
    from importlib import import_module

    class Bound(getattr(import_module(module), name)):  # type: ignore[misc]
        """The trainer with a class of its own: its arguments' annotation is found in its module."""

    rows = [{"messages": [{"role": "user", "content": _text(3, n)},
                          {"role": "assistant", "content": _text(count, 50 + n)}]}
            for n, count in enumerate(LENGTHS)]  # fmt: skip
    words, size = (byte_tokenizer(), 258) if name == "GOLDTrainer" else (tokenizer(), len(WORDS) + 2)
    teacher = language_model(1, vocab_size=size)
    trainer = partial(Bound, teacher_model=teacher, processing_class=words)
    return language_model(vocab_size=size), rows, trainer, {"lmbda": 0.0, "max_length": 64, **arguments}


def _distillation() -> Any:
    from trl import DistillationTrainer

    class Fixed(DistillationTrainer):  # type: ignore[misc]
        """Answers each prompt with a text that follows from the prompt."""

        def _generate_single_turn(self, prompt_ids: Any, *further: Any, **keywords: Any) -> Any:
            return [_completion(sum(prompt)) for prompt in prompt_ids]

    trainer = partial(Fixed, teacher_model=language_model(1), processing_class=tokenizer())
    rows = [{"prompt": [{"role": "user", "content": _text(3, n)}]} for n in range(8)]
    return language_model(), rows, trainer, {"max_completion_length": 16}


def _completion(seed: int) -> list[int]:
    count = 3 + seed % 5
    return [2 + (seed * place) % 30 for place in range(1, count)] + [1]


def _online_dpo() -> Any:
    from trl.experimental.online_dpo import OnlineDPOTrainer

    class Fixed(OnlineDPOTrainer):
        """Answers each prompt with two completions that follow from it: nothing is generated."""

        def _generate(self, model: Any, prompts: Any, images: Any = None) -> Any:
            words = [2 + WORDS.index(prompt) for prompt in prompts]
            prompt = torch.tensor([[word] for word in 2 * words])
            completion = torch.tensor(
                [[word, 8, 9] for word in words] + [[9, 41 - word % 30, word] for word in words]
            )
            return prompt, torch.ones_like(prompt), completion, torch.ones_like(completion), None

    trainer = partial(
        Fixed,
        ref_model=language_model(1),
        reward_funcs=lambda completions, **_: [float(len(text) % 7) for text in completions],
        processing_class=tokenizer(),
    )
    return language_model(), [{"prompt": _text(1, n)} for n in range(8)], trainer, {}


def _grpo_kinds() -> Iterator[dict[str, Any]]:
    """Yields GRPO's losses with each scale of the rewards, a reference, by sequences, and with entropy."""
    by_sequences = {"importance_sampling_level": "sequence"}
    for loss in GRPO:
        level = by_sequences if loss == "luspo" else {}
        for further in ({}, {"scale_rewards": "batch"}, {"scale_rewards": "none"}, {"beta": 0.1}):
            yield {"loss_type": loss, **further, **level}
        if loss not in ("luspo", TOKENS_ALONE):
            yield {"loss_type": loss, **by_sequences}
    yield {"loss_type": "dapo", "entropy_coef": 0.1}


def _words(settings: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _grpo(name: str, **arguments: Any) -> Any:
    """Groups of two completions a prompt, which a stub takes from the prompt in the place of generation."""
    import sys

    import trl

    kind = getattr(trl, f"{name}Trainer")
    sys.modules[kind.__module__].create_model_from_path = lambda *_, **__: language_model(1)  # the reference

    class Fixed(kind):
        """Answers each prompt with a text that follows from the prompt and its place in its group."""

        def _generate_single_turn(self, prompt_ids: Any, *further: Any, **keywords: Any) -> Any:
            completions = [_completion(sum(prompt) + 7 * (n % 2)) for n, prompt in enumerate(prompt_ids)]
            return completions if name == "RLOO" else (completions, None)

    trainer = partial(
        Fixed,
        reward_funcs=lambda completions, **_: [float(len(text) % 5) for text in completions],
        processing_class=tokenizer(),
    )
    settings = {"num_generations": 2, "max_completion_length": 8, **arguments}
    return language_model(), [{"prompt": _text(3, n)} for n in range(8)], trainer, settings


def _adapter(name: str) -> Any:
    import peft
    from transformers import Trainer

    targets = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    config = {
        "AdaLora": lambda: peft.AdaLoraConfig(total_step=9, **targets),
        "LoRA": lambda: peft.LoraConfig(**targets),
        "IA3": lambda: peft.IA3Config(feedforward_modules=[], **targets),
    }[name]()
    model = peft.get_peft_model(language_model(), config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    rows = []
    for number, count in enumerate(LENGTHS):
        ids = torch.randint(2, 40, (12,), generator=torch.Generator().manual_seed(number))
        labels = ids.clone()
        labels[count:] = -100
        rows.append({"input_ids": ids, "labels": labels})
    return model, rows, Trainer, {}
