"""Trains a CNN, a transformer or a residual network with PyTorch alone, on one rank or with DDP over Gloo.

    python3 train.py cnn --profile cnn.json.gz            # one rank: profile, with the plain step time
    torchrun --nproc-per-node 2 train.py cnn --times t.json   # DDP: prints and appends the median step time
    python3 train.py cnn --script cnn.pt                  # writes the network as TorchScript
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule


def cnn():
    layers, wide = [], 3
    for out in (32, 64, 128):
        layers += [nn.Conv2d(wide, out, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        wide = out
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 512), nn.ReLU(), nn.Linear(512, 10))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down, self.heads = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), heads

    def forward(self, x):
        b, s, w = x.shape
        q, k, v = (t.view(b, s, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, s, w))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self, vocabulary=1000, width=192, heads=6, blocks=4, sequence=64):
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, width), nn.Embedding(sequence, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


class Residual(nn.Module):
    def __init__(self, wide, out, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(wide, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.short = nn.Identity() if stride == 1 else nn.Sequential(
            nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.short(x))


def residual():
    return nn.Sequential(nn.Conv2d(3, 24, 3, 1, 1, bias=False), nn.BatchNorm2d(24), nn.ReLU(), Residual(24, 24, 1),
                         Residual(24, 48, 2), Residual(48, 96, 2), Residual(96, 192, 2), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(192, 10))


MODELS = {"cnn": (cnn, 32), "transformer": (Transformer, 16), "residual": (residual, 16)}  # and samples per rank


def plain_attention(q, k, v, is_causal):
    """As operators of PyTorch 1.13, which has no scaled_dot_product_attention."""
    hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    scores = (q @ k.transpose(2, 3) / q.shape[3] ** 0.5).masked_fill(hidden, float("-inf"))
    return scores.softmax(3) @ v


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--profile")
    parser.add_argument("--script")
    parser.add_argument("--times")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--forecast", nargs="*", default=[], help="what 'stepcast predict -o' wrote for this run")
    parser.add_argument("--autocast", action="store_true", help="bfloat16")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--bucket-cap", type=float, default=25.0, help="MiB")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    make, batch = MODELS[options.model]
    model = make()
    if options.model == "transformer":
        inputs, targets = torch.randint(0, 1000, (batch, 64)), torch.randint(0, 1000, (batch * 64,))
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    else:
        inputs, targets = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
        optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    if options.script:
        nn.functional.scaled_dot_product_attention = plain_attention
        torch.jit.trace(model, inputs).save(options.script)
        return
    trained = torch.compile(model) if options.compile else model
    if world > 1:
        dist.init_process_group("gloo")
        trained = nn.parallel.DistributedDataParallel(trained, bucket_cap_mb=options.bucket_cap)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=options.autocast):
            loss = nn.functional.cross_entropy(trained(inputs), targets)
        loss.backward()
        optimizer.step()

    def timed(count):
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
        return times

    timed(5)
    plain = timed(options.steps)
    if options.profile:
        about = {"plain_step_s": statistics.median(plain), "batch": batch, "parameters":
                 [[n, list(p.shape), str(p.dtype)] for n, p in model.named_parameters()]}
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True,
                     schedule=schedule(wait=1, warmup=2, active=12, repeat=1)) as p:
            for i in range(15):
                if i == 3:
                    p.add_metadata_json("stepcast", json.dumps(about))
                step()
                p.step()
        path = options.profile if world == 1 else options.profile.replace(".json", f".rank{dist.get_rank()}.json")
        p.export_chrome_trace(path)
    if options.times and (world == 1 or dist.get_rank() == 0):
        line = {"model": options.model, "ranks": world, "bucket_cap_mb": options.bucket_cap, "torch": torch.__version__,
                "median_s": statistics.median(plain), "least_s": min(plain), "load": os.getloadavg()[0]}
        for path in options.forecast:
            with open(path) as file:
                forecast = statistics.median(json.load(file)["step_time_s"][0])
            line.setdefault("errors", {})[os.path.basename(path).removesuffix(".json")] = forecast / line["median_s"] - 1.0
        print(line, flush=True)
        with open(options.times, "a") as file:
            file.write(json.dumps(line) + "\n")
    if world > 1:
        dist.destroy_process_group()


main()
