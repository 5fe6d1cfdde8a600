"""A rank of `bits.py losses`: trains the GPT in chunks among ranks that are killed and joined."""

import copy
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ddp import chunked
from isobatch.integrations.torch import ElasticRun, survivors


def main(store: str, folder: Path, name: str, options: dict[str, Any]) -> None:
    """Trains the GPT, and writes the digest of its weights at the end."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, data = chunked.Gpt(), chunked.Sentences(unequal=False)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.003)
    average = copy.deepcopy(net)
    timing = {key: options[key] for key in ("ranks", "min_ranks", "lease", "timeout")}
    own = {"chunk": chunked.SIZE, "seed": 5, "extra": {"average": average}}
    log = (folder / f"log-{name}-{os.getpid()}.jsonl").open("w", buffering=1)

    def say(**facts: Any) -> None:
        log.write(json.dumps({"t": time.time(), **facts}) + "\n")

    recipe = chunked.recipe_of(options["steps"])
    for crew in survivors(recipe, net, optimizer, store=store, name=name, **timing, **own):
        say(crew=crew.number, rank=crew.rank, of=crew.size, at=crew.run.position.step)
        model = crew.wrap(net)
        for step in crew.run.steps(crew.run.loader(data)):
            for micro in step:
                with micro.sync(model):
                    (chunked.loss_of("gpt", model, micro.batch) * micro.weight).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            crew.scheduler.step()
            optimizer.zero_grad()
            for mean, weight in zip(average.parameters(), net.parameters(), strict=True):
                mean.detach().lerp_(weight.detach(), 0.1)
            if not crew.void:
                say(done=step.number, crew=crew.number)
            time.sleep(options["pause"])
    (folder / f"final-{name}").write_text(ElasticRun.digest(net, average, optimizer))
    say(ended=True)
