#!/usr/bin/env python3
"""Golden files of tests/golden: what Diffusers and PyTorch compute, for the C code to agree with.

    pip install -r requirements.txt
    python make_golden.py                       rewrites every golden file of this folder (1.2 MB)
    python make_golden.py --check-trained DIR --test BUILD/tests/golden_test_wan
                                                forward passes of a trained model, Diffusers against C

Models are random but not tame: weights are large enough that attention is far from uniform, and norms, tables and biases
are far from their initial 1 and 0, so a swapped pair or a forgotten term shows.  References are Diffusers in float32, also
for the models stored in 16 bits: what is measured then is the arithmetic of the C code, not that of PyTorch's bf16.
"""

import argparse
import json
import math
import pathlib
import subprocess
import tempfile

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler, WanTransformer3DModel
from safetensors.torch import load_file, save_file

HERE = pathlib.Path(__file__).resolve().parent

# name -> configuration, stored dtype, shard size or None, latent [frames, height, width], context rows, timestep
MODELS = {
    "wan-f32": (dict(patch_size=[1, 2, 2], num_attention_heads=2, attention_head_dim=16, in_channels=5, out_channels=3,
                     text_dim=24, freq_dim=32, ffn_dim=56, num_layers=2),
                torch.float32, None, (3, 10, 6), 7, 873.4375),
    "wan-bf16": (dict(patch_size=[1, 4, 4], num_attention_heads=3, attention_head_dim=32, in_channels=3, out_channels=3,
                      text_dim=40, freq_dim=64, ffn_dim=160, num_layers=2),
                 torch.bfloat16, "250KB", (3, 20, 12), 32, 411.25),
    "wan-f16": (dict(patch_size=[2, 1, 2], num_attention_heads=3, attention_head_dim=12, in_channels=2, out_channels=2,
                     text_dim=9, freq_dim=16, ffn_dim=33, num_layers=2, cross_attn_norm=False, eps=1e-5),
                torch.float16, None, (4, 5, 14), 1, 12.0),
}

CONFIGS = {
    "wan2.1-t2v-1.3b": dict(num_attention_heads=12, ffn_dim=8960, num_layers=30),
    "wan2.1-t2v-14b": dict(num_attention_heads=40, ffn_dim=13824, num_layers=40),
}

SAMPLERS = [("euler", 1, 3.0), ("euler", 5, 1.0), ("euler", 40, 3.0), ("unipc", 1, 3.0), ("unipc", 2, 3.0),
            ("unipc", 3, 1.0), ("unipc", 10, 3.0), ("unipc", 40, 5.0)]

GENERATED = dict(model="wan-bf16", steps=4, guidance=3.0, shift=3.0)

CAPTION = "a red star orbits over a blue checker background, camera pans left"

NOISE_SEEDS = [0, 1, 2**63 + 5]
NOISE_COUNT = 1001


def randomise(model, generator):
    for name, parameter in model.named_parameters():
        value = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() == 1 and "norm" in name and name.endswith("weight"):
            value = 1 + 0.3 * value
        elif parameter.dim() == 1:
            value = 0.2 * value
        elif name.endswith("scale_shift_table"):
            value = 0.5 * value
        else:
            value = value * 1.4 / math.sqrt(parameter[0].numel())
        parameter.data.copy_(value)


def forward(model, latent, timestep, context):
    with torch.no_grad():
        dtype = next(model.blocks.parameters()).dtype
        return model(latent[None].to(dtype), torch.tensor([timestep]), context[None].to(dtype)).sample[0].float()


def write_model(name, config, dtype, shard, extent, rows, timestep):
    folder = HERE / name
    generator = torch.Generator().manual_seed(sum(name.encode()))
    model = WanTransformer3DModel(**config).eval()
    randomise(model, generator)
    model.to(dtype).save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))

    reference = WanTransformer3DModel.from_pretrained(folder, torch_dtype=torch.float32).eval()
    latent = torch.randn(config["in_channels"], *extent, generator=generator)
    context = torch.randn(rows, config["text_dim"], generator=generator)
    velocity = forward(reference, latent, timestep, context)
    save_file({"latent": latent, "context": context, "timestep": torch.tensor([timestep]), "velocity": velocity},
              folder / "golden.safetensors")
    stored = forward(model, latent, timestep, context) if dtype == torch.bfloat16 else velocity
    print(f"{name}: |velocity| {velocity.std():.3f}, PyTorch in the stored dtype is off by "
          f"{relative_l2(stored, velocity):.1e}")


def relative_l2(a, b):
    return float((a - b).norm() / b.norm())


def write_names(name, config):
    with torch.device("meta"):
        model = WanTransformer3DModel(**config)
    lines = [" ".join([key, *map(str, value.shape)]) for key, value in sorted(model.state_dict().items())]
    (HERE / f"{name}.tensors.txt").write_text("\n".join(lines) + "\n")
    model.save_config(HERE / name)
    print(f"{name}: {len(lines)} tensors")


def make_scheduler(kind, steps, shift):
    if kind == "euler":
        scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps))
    else:
        scheduler = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=shift)
        scheduler.set_timesteps(steps)
    return scheduler


def write_samplers():
    """Trajectories under a smooth made-up model, x0 = tanh(2 x): the velocities are replayed, the x compared."""
    tensors = {}
    for kind, steps, shift in SAMPLERS:
        scheduler = make_scheduler(kind, steps, shift)
        x = torch.randn(1, 48, 1, 1, generator=torch.Generator().manual_seed(steps))
        xs, velocities = [x], []
        for i, t in enumerate(scheduler.timesteps):
            velocities.append((x - torch.tanh(2 * x)) / scheduler.sigmas[i])
            x = scheduler.step(velocities[-1], t, x).prev_sample
            xs.append(x)
        key = f"{kind}-{steps}-{shift:g}"
        tensors |= {f"{key}.x": torch.cat(xs).flatten(1), f"{key}.velocity": torch.cat(velocities).flatten(1),
                    f"{key}.sigmas": scheduler.sigmas[:-1].clone(), f"{key}.timesteps": scheduler.timesteps.float()}
    save_file(tensors, HERE / "samplers.safetensors")


def write_generated(model, steps, guidance, shift):
    """Whole generations under guidance: noise in, latent out."""
    reference = WanTransformer3DModel.from_pretrained(HERE / model, torch_dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(steps)
    noise = torch.randn(reference.config.in_channels, 2, 12, 8, generator=generator)
    context = torch.randn(6, reference.config.text_dim, generator=generator)
    null_context = torch.randn(9, reference.config.text_dim, generator=generator)
    tensors = {"noise": noise, "context": context, "null_context": null_context}
    for kind in "euler", "unipc":
        scheduler = make_scheduler(kind, steps, shift)
        x = noise
        for t in scheduler.timesteps:
            wanted, unwanted = (forward(reference, x, float(t), c) for c in (context, null_context))
            x = scheduler.step(unwanted + guidance * (wanted - unwanted), t, x[None]).prev_sample[0]
        tensors[kind] = x
    save_file(tensors, HERE / "generated.safetensors")


def splitmix64(seed, counter):
    mask = 2**64 - 1
    z = (seed + (counter + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def noise(seed, count):
    """Box-Muller with the C library's log, cos and sin in double; src/dit/noise.c has its own series."""
    numbers = []
    for i in range(0, count + 1, 2):
        radius = math.sqrt(-2 * math.log(((splitmix64(seed, i) >> 12) + 0.5) / 2**52))
        turn = 2 * math.pi * (splitmix64(seed, i + 1) >> 11) / 2**53
        numbers += [radius * math.cos(turn), radius * math.sin(turn)]
    return torch.from_numpy(np.array(numbers[:count], dtype=np.float64).astype(np.float32))


def encode_caption(folder, caption):
    """The word-window encoder of src/dit/text.h, once more."""
    config = json.loads((folder / "config.json").read_text())
    weights = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
    words = [config["vocabulary"].index(word) for word in caption.replace(",", " ").split()]
    reach, pad = config["window"], config["vocabulary"].index("<pad>")
    places = [pad] * reach + words + [pad] * (config["max_words"] - len(words) + reach)
    return torch.stack([row + sum(weights["window.weight"][o, places[i + o]] for o in range(2 * reach + 1))
                        for i, row in enumerate(weights["position.weight"])])


def check_trained(folder, test, extent):
    """folder: a model with transformer/ and text_encoder/ inside."""
    folder = pathlib.Path(folder)
    model, info = WanTransformer3DModel.from_pretrained(folder / "transformer", torch_dtype=torch.float32,
                                                        output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"], info
    latent = torch.randn(model.config.in_channels, *extent, generator=torch.Generator().manual_seed(0))
    context = encode_caption(folder / "text_encoder", CAPTION)
    for timestep in 1000.0, 750.0, 250.0, 25.0:
        with tempfile.TemporaryDirectory() as scratch:
            golden = pathlib.Path(scratch) / "golden.safetensors"
            save_file({"latent": latent, "context": context, "timestep": torch.tensor([timestep]),
                       "velocity": forward(model.eval(), latent, timestep, context)}, golden)
            print(f"timestep {timestep:g}", flush=True)
            subprocess.run([test, folder / "transformer", golden], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check-trained", metavar="DIR")
    parser.add_argument("--test", metavar="BINARY", help="the program built from test_wan.c")
    parser.add_argument("--size", nargs=3, type=int, default=(16, 64, 64), metavar=("FRAMES", "HEIGHT", "WIDTH"))
    arguments = parser.parse_args()
    if arguments.check_trained:
        check_trained(arguments.check_trained, arguments.test, arguments.size)
        return
    for name, description in MODELS.items():
        write_model(name, *description)
    for name, config in CONFIGS.items():
        write_names(name, config)
    write_samplers()
    write_generated(**GENERATED)
    save_file({f"seed-{seed}": noise(seed, NOISE_COUNT) for seed in NOISE_SEEDS}, HERE / "noise.safetensors")
    for path in HERE.rglob("*.safetensors"):
        path.chmod(0o644)  # the library writes them for their owner alone


if __name__ == "__main__":
    main()
