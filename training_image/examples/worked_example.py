import os

import steadyray
import torch
from sklearn.datasets import load_digits
from torch.nn import functional


def train(config):
    digits = load_digits()
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32), torch.tensor(digits.target)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    sampler = steadyray.Sampler(samples=len(x), global_batch=64, steps=config["steps"])
    state = steadyray.State(model=model, optimizer=optimizer, sampler=sampler)
    for generation in steadyray.generations(state):
        with generation:
            ddp = generation.wrap(model)
            for step in generation.steps(sampler):
                optimizer.zero_grad()
                for part in step.micro_batches(limit=32):
                    inputs, labels = x[part].to(generation.device), y[part].to(generation.device)
                    step.backward(functional.cross_entropy(ddp(inputs), labels, reduction="sum"))
                optimizer.step()
                step.commit()
    with torch.no_grad():
        logits = model.cpu()(x)
    accuracy = float((logits.argmax(1) == y).float().mean())
    return {"loss": float(functional.cross_entropy(logits, y)), "accuracy": accuracy}


if __name__ == "__main__":
    config = {"steps": 150}
    if "STEADYRAY_RUN" in os.environ:
        print(steadyray.run(train, config, workers=(1, 2), spares=1))
    else:
        print(train(config))  # in one process, or under torchrun; no Ray
