"""Programs of torch.export for tests, without weights: python3 make_exported.py (PyTorch 2.4 and later).

residual.pt2: two residual blocks and a tied pair of linear layers; residual.json contains what PyTorch counts:
parameters, and flop of the products by torch.utils.flop_counter. ../../fuzz/seeds/small.exported.json: the JSON of a
convolution and a linear layer.
"""
import io
import json
import os
import zipfile

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)

    def forward(self, x):
        return torch.relu(x + self.bn(self.conv(x)))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList([Block(8), Block(8)])
        self.up = nn.Linear(8, 8)
        self.down = nn.Linear(8, 8)
        self.down.weight = self.up.weight

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        x = x.mean((2, 3))
        return self.down(torch.nn.functional.gelu(self.up(x)))


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.fc = nn.Linear(8, 2)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).flatten(1))


def program_of(model, x):
    packed = io.BytesIO()
    torch.export.save(torch.export.export(model, (x,), strict=False), packed)
    archive = zipfile.ZipFile(packed)
    names = [n for n in archive.namelist() if n.endswith("exported_program.json") or n.endswith("models/model.json")]
    program = json.loads(archive.read(names[0]))
    for node in program["graph_module"]["graph"]["nodes"]:
        node["metadata"] = {k: v for k, v in node["metadata"].items() if k == "nn_module_stack"}
    program["graph_module"]["module_call_graph"] = []
    return names[0], program


here = os.path.dirname(os.path.abspath(__file__))
model, x = Residual().train(), torch.randn(4, 3, 6, 6)
name, program = program_of(model, x)
with zipfile.ZipFile(os.path.join(here, "residual.pt2"), "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr(zipfile.ZipInfo(name), json.dumps(program), zipfile.ZIP_DEFLATED)
with FlopCounterMode(display=False) as counter:
    model(x)
about = {"torch": torch.__version__, "batch": 4, "parameters": sum(p.numel() for p in model.parameters()),
         "product_flop": counter.get_total_flops(), "shapes": {n: list(p.shape) for n, p in model.named_parameters()}}
with open(os.path.join(here, "residual.json"), "w") as file:
    json.dump(about, file, indent=1)

name, program = program_of(Small().train(), torch.randn(2, 1, 4, 4))
for node in program["graph_module"]["graph"]["nodes"]:
    node["metadata"] = {}
with open(os.path.join(here, "../../fuzz/seeds/small.exported.json"), "w") as file:
    json.dump(program, file)
