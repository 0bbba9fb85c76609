#!/usr/bin/env python3
"""Capture self-attention from PyTorch for `mcsa analyze --tensors FOLDER`.

    with Capture("captured", layers=30, branches=2, steps={0, 1, 3, 6, 10, 15, 21, 28, 36}, keep_layers={0, 14, 29}):
        pipe(prompt, num_inference_steps=40)

It stands in for torch.nn.functional.scaled_dot_product_attention, which Diffusers looks up at each call.  Calls whose
queries and keys are equally many are taken for self-attention and counted: layer by layer, branch by branch, step by
step.  Where a model calls something else, call `save` yourself.  Needs torch and safetensors.
"""

import pathlib

import torch
from safetensors.torch import save_file


def save(folder, step, layer, branch, q, k, v):
    """q, k, v: [heads, tokens, head_dim] as attention gets them, after norms and RoPE; float32, bfloat16 or float16."""
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().contiguous().cpu() for name, t in (("q", q), ("k", k), ("v", v))}
    save_file(tensors, pathlib.Path(folder) / f"step-{step:03d}.layer-{layer:03d}.branch-{branch}.safetensors")


class Capture:
    """steps, keep_layers: which to keep, or None for all; branches: evaluations of the model per step."""

    def __init__(self, folder, layers, branches=1, steps=None, keep_layers=None):
        self.folder, self.layers, self.branches = folder, layers, branches
        self.steps, self.keep_layers, self.calls = steps, keep_layers, 0

    def __enter__(self):
        self.inner = torch.nn.functional.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = self.attend
        return self

    def __exit__(self, *_):
        torch.nn.functional.scaled_dot_product_attention = self.inner

    def attend(self, query, key, value, *args, **kwargs):
        if query.shape == key.shape:
            evaluation, layer = divmod(self.calls, self.layers)
            step, branch = divmod(evaluation, self.branches)
            self.calls += 1
            if (self.steps is None or step in self.steps) and (self.keep_layers is None or layer in self.keep_layers):
                save(self.folder, step, layer, branch, query[0], key[0], value[0])
        return self.inner(query, key, value, *args, **kwargs)
