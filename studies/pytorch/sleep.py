"""Trains modules that sleep for the times of a trace, with PyTorch's own DDP: more ranks than cores.

    stepcast import cnn.json.gz -o cnn.trace.json
    stepcast lab run --cluster lab-star:hosts=4,rate=1Gb/s -- python3 sleep.py cnn.trace.json --times t.json

Each segment of the trace is a module with its parameters and buffers. Its forward sleeps once, its backward until each
gradient is ready. Gradients, buckets and all-reduces are real. Without DDP a step takes as long as in the trace: first the
network trains alone, and what it takes beyond the trace is subtracted from the sleeps.
"""
import argparse
import json
import os
import re
import statistics
import time

import torch
import torch.distributed as dist
from torch import nn


late_s = 0.0  # by which the last sleep ended too late: the next one is shorter
between_s = 0.0  # what Python takes from one sleep to the next, measured without DDP: every sleep is shorter by it


def until(begin, seconds):
    global late_s
    end = begin + seconds - late_s - between_s
    time.sleep(max(0.0, end - time.perf_counter()))
    late_s = max(0.0, time.perf_counter() - end)


class Sleep(torch.autograd.Function):
    """Sleeps in its forward and, before the gradient of `weight` is ready, in its backward."""

    @staticmethod
    def forward(ctx, x, weight, forward_s, backward_s):
        begin = time.perf_counter()
        ctx.shape, ctx.backward_s = None if weight is None else weight.shape, backward_s
        y = x.clone()
        until(begin, forward_s)
        return y

    @staticmethod
    def backward(ctx, gradient):
        begin = time.perf_counter()
        weight = None if ctx.shape is None else torch.zeros(ctx.shape)
        until(begin, ctx.backward_s)
        return gradient, weight, None, None


class Segment(nn.Module):
    def __init__(self, described, timed):
        super().__init__()
        sizes = [int(n) for n in re.findall(r"parameter: (\d+)B", described)]
        self.weights = nn.ParameterList(torch.zeros(size // 4) for size in sizes)
        for size in re.findall(r"buffer: (\d+)B", described):
            self.register_buffer("running", torch.zeros(int(size) // 4))
        for count in re.findall(r"counters: (\d+)", described):
            for i in range(int(count)):
                self.register_buffer(f"batches{i}", torch.zeros((), dtype=torch.int64))
        self.forward_s, backward = (statistics.median(timed[key]) for key in ("forward_s", "backward_s"))
        ready = timed["grad_ready_fraction"] or [1.0] * len(sizes)
        order = sorted(range(len(sizes)), key=lambda i: ready[i])
        begins = [0.0] + [ready[i] for i in order]
        # In the order of the backward: what follows the last gradient comes last.
        self.parts = [(i, (ready[i] - begin) * backward) for i, begin in zip(order, begins)]
        self.parts.append((None, (1.0 - begins[-1]) * backward))

    def forward(self, x):
        sleep = self.forward_s
        for place, backward in reversed(self.parts):
            x = Sleep.apply(x, None if place is None else self.weights[place], sleep, backward)
            sleep = 0.0
        return x


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("trace")
    parser.add_argument("--forecast", help="what 'stepcast predict -o' wrote for this run")
    parser.add_argument("--times")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--bucket-cap", type=float, default=25.0, help="MiB")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with open(options.trace) as file:
        trace = json.load(file)
    entry = trace["entries"][0]
    described = "\n".join(trace["described"]).split("\n  - name: ")[1:]
    net = nn.Sequential(*(Segment(d, t) for d, t in zip(described, entry["segments"], strict=True)))
    optimizer, zero_grad = (sum(statistics.median(s[key]) for s in entry["segments"]) for key in ("optimizer_s", "zero_grad_s"))
    loss, host = (statistics.median(entry[key]) for key in ("loss_s", "host_s"))

    def timed(trained):
        times = []
        for _ in range(5 + options.steps):
            begin = time.perf_counter()
            net.zero_grad()
            until(begin, zero_grad)
            y = trained(torch.zeros(1, requires_grad=True))
            before_loss = time.perf_counter()
            total = y.sum()
            until(before_loss, loss)
            total.backward()
            until(time.perf_counter(), optimizer + host)
            times.append(time.perf_counter() - begin)
        return statistics.median(times[5:])

    dist.init_process_group("gloo")
    global between_s
    traced = optimizer + zero_grad + loss + host + sum(s.forward_s + sum(t for _, t in s.parts) for s in net)
    sleeps = 3 + 2 * sum(len(s.parts) for s in net)
    before = timed(net)
    between_s = (before - traced) / sleeps
    alone, median = timed(net), timed(nn.parallel.DistributedDataParallel(net, bucket_cap_mb=options.bucket_cap))
    if dist.get_rank() == 0:
        line = {"trace": os.path.basename(options.trace), "ranks": dist.get_world_size(), "bucket_cap_mb": options.bucket_cap,
                "torch": torch.__version__, "traced_s": traced, "alone_s": alone, "median_s": median, "load": os.getloadavg()[0]}
        if options.forecast:
            with open(options.forecast) as file:
                forecast = statistics.median(json.load(file)["step_time_s"][0])
            line |= {"forecast": os.path.basename(options.forecast), "forecast_s": forecast, "error": forecast / median - 1.0}
        print(line, flush=True)
        if options.times:
            with open(options.times, "a") as file:
                file.write(json.dumps(line) + "\n")
    dist.destroy_process_group()


main()
