"""TRL's OnlineDPOTrainer with fixed completions.

Eight equal prompts, so that every split must give the same gradient.
"""

import torch
import transformers as tf
from datasets import Dataset
from tokenizers import Tokenizer, models
from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

CONFIG = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}
tokenizer = Tokenizer(models.WordLevel({"<pad>": 0, "<eos>": 1}, unk_token="<eos>"))


class Fixed(OnlineDPOTrainer):
    def _generate(self, model, prompts, images=None):
        prompt = torch.full((2 * len(prompts), 1), 5)
        completion = torch.tensor([[7, 8, 9]] * len(prompts) + [[9, 8, 7]] * len(prompts))
        return prompt, torch.ones_like(prompt), completion, torch.ones_like(completion), None


class Show(tf.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        gradient = model.lm_head.weight.grad.norm().item()
        print(f"accumulation {args.gradient_accumulation_steps}: gradient {gradient:.4f}")


for micro_batch, accumulation in ((8, 1), (4, 2), (2, 4)):
    torch.manual_seed(0)
    model = tf.LlamaForCausalLM(tf.LlamaConfig(**CONFIG))
    args = OnlineDPOConfig(
        "/tmp/found",
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation,
        max_steps=1,
        max_grad_norm=0,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        bf16=False,
        use_cpu=True,
    )
    Fixed(
        model,
        ref_model=tf.LlamaForCausalLM(tf.LlamaConfig(**CONFIG)),
        reward_funcs=lambda completions, **kwargs: [float(row) for row in range(len(completions))],
        args=args,
        train_dataset=Dataset.from_list([{"prompt": "word"}] * 8),
        processing_class=tf.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>"
        ),
        callbacks=[Show()],
    ).train()
