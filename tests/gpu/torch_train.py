"""Trains a small transformer on random text, the same on every library, and prints a line of JSON:
the loss of every step and the time of a step.

    torchrun --nproc-per-node 4 tests/gpu/torch_train.py ddp|fsdp|tp [--steps 200]"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import DTensor

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, BATCH = 1024, 1024, 8, 16, 256, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        h = self.before(x)
        q, k, v = (f(h).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)
                   for f in (self.q, self.k, self.v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        return self.head(self.norm(self.blocks(self.embed(tokens))))


def parallel(model, how, device):
    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[device.index])
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                                   parallelize_module)
    mesh = init_device_mesh("cuda", (dist.get_world_size(),))
    for block in model.blocks:
        columns, rows = ColwiseParallel(), RowwiseParallel()
        parallelize_module(block, mesh, {"q": columns, "k": columns, "v": columns, "out": rows,
                                         "up": columns, "down": rows})
    return model


def adamw(model):
    """Sharded and plain tensors are in groups of their own, since a foreach call takes one kind only.
    Tensor by tensor the optimizer would take some four times as long."""
    kinds = {True: [], False: []}
    for p in model.parameters():
        kinds[isinstance(p, DTensor)].append(p)
    return torch.optim.AdamW([{"params": kind} for kind in kinds.values() if kind], lr=3e-4,
                             foreach=True)


def texts(steps, seed):
    """Batches of text that can be learnt: each token follows from the one before, but for some noise.
    All at once, so that no step waits for it."""
    generator = torch.Generator().manual_seed(seed)
    follower = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(3))
    text = torch.randint(VOCABULARY, (steps * BATCH, LENGTH + 1), generator=generator)
    known = torch.rand(text.shape, generator=generator) < 0.9
    for i in range(LENGTH):
        text[:, i + 1] = torch.where(known[:, i], follower[text[:, i]], text[:, i + 1])
    return text.view(steps, BATCH, LENGTH + 1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=["ddp", "fsdp", "tp"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--backend", default="nccl", help="gloo: what losses can be compared with "
                        "where ranks share a GPU, which NVIDIA's library refuses")
    args = parser.parse_args()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group(args.backend, device_id=None if args.backend == "gloo" else device)
    torch.manual_seed(1)  # the same weights on every rank
    model = parallel(Model().to(device), args.how, device)
    optimizer = adamw(model)
    # With tensor parallelism all ranks work on the same text.
    data = texts(args.steps, 2 + (0 if args.how == "tp" else dist.get_rank())).to(device)
    losses, times = [], []
    for text in data:
        torch.cuda.synchronize()
        dist.barrier(device_ids=None if args.backend == "gloo" else [device.index])
        start = time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(text[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        mean = loss.detach().clone()
        dist.all_reduce(mean)  # gloo has no average
        losses.append(mean.item() / dist.get_world_size())
    if dist.get_rank() == 0:
        print(json.dumps({"how": args.how, "ranks": dist.get_world_size(),
                          "nccl": list(torch.cuda.nccl.version()),
                          "ms": 1e3 * statistics.median(times[10:] or times), "loss": losses}))
    dist.destroy_process_group()


main()
