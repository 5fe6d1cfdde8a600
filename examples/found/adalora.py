"""AdaLoRA under a Trainer: eight equal rows, so that every split must give the same gradient."""

import peft
import torch
import transformers as tf

ROW = {"input_ids": list(range(5, 25)), "labels": list(range(5, 25))}
CONFIG = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


class Show(tf.TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        gradient = next(weight.grad for name, weight in model.named_parameters() if "lora_A" in name)
        print(
            f"accumulation {args.gradient_accumulation_steps}: gradient of lora_A "
            f"{gradient.norm().item():.4f}"
        )


for micro_batch, accumulation in ((8, 1), (4, 2), (2, 4)):
    torch.manual_seed(0)
    lora = peft.AdaLoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj"], total_step=9)
    model = peft.get_peft_model(tf.LlamaForCausalLM(tf.LlamaConfig(**CONFIG)), lora)
    args = tf.TrainingArguments(
        "/tmp/found",
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation,
        max_steps=1,
        max_grad_norm=0,
        report_to="none",
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    )
    tf.Trainer(model, args, train_dataset=[ROW] * 8, callbacks=[Show()]).train()
