"""TRL's GRPO with `entropy_coef`: equal rewards leave only the gradient of the mean entropy.

A report. GRPO's entropy bonus is a mean over the micro-batch's tokens: its gradient depends on
gradient_accumulation_steps: 0.3260 by hand over all 45 tokens and in one pass, 0.3815 in two, 0.4612 in four.
Tried: the summed entropies, divided by `num_items_in_batch / num_processes *
current_gradient_accumulation_steps / steps_per_generation`, as `dapo` divides its policy term, give 0.3260 at
every accumulation, whatever the `loss_type`; with `top_entropy_quantile` below 1 the tokens of the mask would
have to be counted.
"""

import torch
import transformers as tf
from datasets import Dataset
from tokenizers import Tokenizer, models
from torch.optim.optimizer import register_optimizer_step_pre_hook
from trl import GRPOConfig, GRPOTrainer

SIZES = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
OFF = {"max_grad_norm": 0, "report_to": "none", "save_strategy": "no", "bf16": False, "disable_tqdm": True}
COMPLETIONS = [[*range(3, 3 + count), 1] for count in (1, 1, 1, 1, 30, 1, 1, 1)]
words = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1, "w": 2}, unk_token="<eos>"))
tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
GRPOTrainer._generate_single_turn = lambda *_: (COMPLETIONS, None)  # nothing is generated
config = tf.LlamaConfig(vocab_size=50, initializer_range=1.0, **SIZES)
model = tf.set_seed(0) or tf.LlamaForCausalLM(config)
logps = [model(torch.tensor([[2, *ids]])).logits[0, :-1].log_softmax(-1) for ids in COMPLETIONS]
torch.cat([-(logp.exp() * logp).sum(-1) for logp in logps]).mean().backward()
print(f"by hand, over {sum(map(len, logps))} tokens: {model.lm_head.weight.grad.norm():.4f}")
register_optimizer_step_pre_hook(
    lambda *_: print(f"accumulation {accumulation}: {model.lm_head.weight.grad.norm():.4f}")
)
for micro_batch, accumulation in ((8, 1), (4, 2), (2, 4)):
    model = tf.set_seed(0) or tf.LlamaForCausalLM(config)
    split = {"per_device_train_batch_size": micro_batch, "gradient_accumulation_steps": accumulation}
    args = GRPOConfig("/tmp/found", max_steps=1, num_generations=2, max_completion_length=32, use_cpu=True,
                      entropy_coef=1.0, **split, **OFF)  # fmt: skip
    rows, reward = Dataset.from_list([{"prompt": "w"}] * 8), lambda completions, **_: [1.0] * len(completions)
    GRPOTrainer(model, reward, args, rows, processing_class=tokenizer).train()
