"""A loop by hand over sampled completions: each step generates, scores, and takes passes of the samples.

The loss is a mean over the completions' tokens of the step, or of each pass with the word `own`.
"""

import os
import sys

import torch
import transformers

micro_batch, accumulation = int(sys.argv[1]), int(sys.argv[2])
rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
if ranks > 1:
    torch.distributed.init_process_group("gloo")
torch.manual_seed(1)
sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
tokens = {"vocab_size": 24, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}
model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **tokens))
trained = model if ranks == 1 else torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 1e-2)
SAMPLING = {"temperature": float(os.environ.get("ROLLOUT_TEMPERATURE", "1"))}
COUNT = micro_batch * accumulation

for step in range(3):
    prompts = torch.tensor([[3 + step, 4 + number // 2] for number in range(COUNT * ranks)])
    own = prompts[rank * COUNT : (rank + 1) * COUNT]
    model.eval()
    with torch.no_grad():
        mask = torch.ones_like(own)
        sequences = model.generate(own, attention_mask=mask, do_sample=True, max_new_tokens=9, **SAMPLING)
    model.train()
    ends = (sequences[:, 2:] == 1).int()
    mask = (ends.cumsum(1) - ends == 0) & (sequences[:, 2:] != 0)
    rewards = (sequences[:, 2:] * mask).sum(1).remainder(5).float() - 1.5
    total = mask.sum()
    if ranks > 1:
        torch.distributed.all_reduce(total)
    for place in range(0, COUNT, micro_batch):
        part, counted = sequences[place : place + micro_batch], mask[place : place + micro_batch]
        logits = trained(
            part, attention_mask=torch.cat([torch.ones_like(part[:, :2]), counted.int()], 1)
        ).logits
        logps = logits[:, 1:-1].log_softmax(-1).gather(2, part[:, 2:, None])[..., 0]
        loss = -(logps * rewards[place : place + micro_batch, None] * counted).sum()
        loss = loss / counted.sum() / accumulation if "own" in sys.argv else loss / total * ranks
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()
