"""Costs of PyTorch's own Gloo between two ranks, for 'stepcast import'.

    torchrun --nproc-per-node 2 costs.py gloo.json && stepcast import gloo.json -o gloo.calibration.json
"""
import json, os, sys, time, torch, torch.distributed as dist

if os.environ.get("LOCAL_WORLD_SIZE", "2") != "2":
    sys.exit("costs.py: start both ranks on one machine; the links between hosts are those of --cluster")
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, samples = dist.get_rank(), {}
def probe(name, size, count, work, everybody=True, clock=time.process_time):
    dist.barrier()
    begin, cpu = time.perf_counter(), clock()
    if everybody or rank == 0:
        for _ in range(count): work()
    cost = torch.tensor([time.perf_counter() - begin, clock() - cpu], dtype=torch.float64) / count
    slowest, mean = cost.clone(), cost.clone()
    dist.all_reduce(slowest, dist.ReduceOp.MAX), dist.all_reduce(mean)
    of = samples.setdefault((name, size), {"probe": name, "bytes": size, "time_s": [], "cpu_s": []})
    of["time_s"].append(float(slowest[0])), of["cpu_s"].append(float(mean[1]) / (2 if everybody else 1))
def trip(x):  # half a round trip each
    dist.send(x, 1 - rank) if rank == 0 else dist.recv(x, 1 - rank)
    dist.recv(x, 1 - rank) if rank == 0 else dist.send(x, 1 - rank)
def both(x, y):
    for work in (dist.irecv(y, 1 - rank), dist.isend(x, 1 - rank)): work.wait()
stream = torch.zeros(1 << 22)
image, filters = torch.randn(16, 32, 32, 32, requires_grad=True), torch.randn(32, 32, 3, 3, requires_grad=True)
def train():  # as layers do: through the caches that ranks share
    torch.nn.functional.conv2d(image, filters, padding=1).relu().sum().backward()
for _ in range(int(os.environ.get("ROUNDS", "7"))):
    for power in range(2, 25, 2):
        x, y = torch.zeros(1 << power, dtype=torch.uint8), torch.zeros(1 << power, dtype=torch.uint8)
        count = max(2, min(100, (1 << 23) >> power))
        trip(x), both(x, y)
        probe("ping_pong", 1 << power, count, lambda: trip(x))
        for key in ("time_s", "cpu_s"): samples[("ping_pong", 1 << power)][key][-1] /= 2
        probe("exchange", 1 << power, count, lambda: both(x, y))
        if power >= 8:
            a, b = torch.zeros(1 << power - 2), torch.zeros(1 << power - 2)
            probe("reduce", 1 << power, count, lambda: a.add_(b), False)
            probe("copy", 1 << power, count, lambda: torch.mul(b, 0.5, out=a), False)
    for name, everybody in (("one", False), ("all", True)):
        probe("compute_" + name, 0, 20, train, everybody, time.thread_time)
        probe("memory_" + name, 3 * 4 * stream.numel(), 4, lambda: torch.add(stream, stream, out=stream), everybody)
if rank == 0:
    with open(sys.argv[1], "w") as file:
        json.dump({"torch_costs": torch.__version__, "backend": "gloo", "world_size": 2, "ranks_on_machine": 2,
                   "cores": os.cpu_count(), "samples": list(samples.values())}, file)
dist.destroy_process_group()
