"""Measures an exported model: held-out flow-matching loss and contact sheets of sampled clips.

Weights are the BF16 values in the file, as users get them. The loss is the training loss over 512 scenes of
seed 1 (a range of seeds that training never draws), noise of the same generator, and u in 512 equal strata,
which is uniform with a smaller spread. Sheets are Euler samples with classifier-free guidance: one row a
caption, eight frames a row. On a GPU the arithmetic is BF16 under autocast with FP32 residual stream, on a
CPU it is FP32.
"""

import argparse
import contextlib
import json
import sys
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

import captions
import model as model_file
import scenes

SHEET = (
    "a red star orbits over a blue checker background, camera pans left",
    (
        "a big green striped ring moves left and a small yellow square bounces "
        "over a red dots background, camera fixed"
    ),
    "a big yellow heart bounces over a purple background",
    "a cyan dotted circle moves right over an orange stripes background, camera fixed",
    "a big white moon moves up over a black dots background, camera zooms out",
    "a big orange cross spins over a gray checker background",
    "a green triangle moves down and a red circle moves up over a white background",
    (
        "a small blue square orbits and a big orange ring stays still "
        "over a green stripes background, camera zooms in"
    ),
    "a purple checkered square grows over a yellow dots background, camera rotates",
    "a big blue star shrinks over a white checker background, camera pans right",
    "a white heart orbits and a cyan star moves right over a red stripes background",
    "a red triangle spins, a yellow moon bounces and a blue circle moves left over a gray background",
)


def arithmetic(device: torch.device):
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else contextlib.nullcontext()


@torch.no_grad()
def held_out_loss(
    model: torch.nn.Module, count: int, size: list[int], batch: int, device: torch.device
) -> dict:
    generator = torch.Generator().manual_seed(1)
    drawn = scenes.draw(count, generator)
    words = captions.encode(captions.describe(drawn)).to(device)
    u = (torch.randperm(count, generator=generator) + torch.rand(count, generator=generator)) / count
    losses = []
    for i in range(0, count, batch):
        x = scenes.render(
            scenes.Scenes(drawn.scene[i : i + batch], drawn.objects[i : i + batch]), *size, device
        )
        noise = torch.randn(x.shape, generator=generator).to(device)
        s = model_file.shifted(u[i : i + batch].to(device))
        level = s.view(-1, 1, 1, 1, 1)
        with arithmetic(device):
            velocity = model((1 - level) * x + level * noise, 1000 * s, words[i : i + batch])
        losses.append((velocity - (noise - x)).square().mean((1, 2, 3, 4)))
    each = torch.cat(losses).double()
    return {
        "loss": round(each.mean().item(), 6),
        "standard_error": round((each.std() / count**0.5).item(), 6),
    }


@torch.no_grad()
def sample(
    model: torch.nn.Module,
    words: Tensor,
    size: list[int],
    steps: int,
    guidance: float,
    seed: int,
    device: torch.device,
) -> Tensor:
    """Clips [B, 3, T, H, W] in [-1, 1] by Euler steps on the shifted schedule."""
    x = torch.randn((len(words), 3, *size), generator=torch.Generator().manual_seed(seed)).to(device)
    words = words.to(device)
    levels = model_file.shifted(torch.linspace(1, 0, steps + 1)).tolist()
    for now, then in zip(levels, levels[1:]):
        timestep = torch.full((len(x),), 1000 * now, device=device)
        with arithmetic(device):
            told = model(x, timestep, words)
            free = model(x, timestep, model_file.null_words(words))
        x = x + (then - now) * (free + guidance * (told - free))
    return x.clamp(-1, 1)


def contact_sheet(clips: Tensor, path: Path, frames: int = 8) -> None:
    picked = clips[:, :, torch.linspace(0, clips.shape[2] - 1, frames).round().long()]
    rows = [torch.cat(list(clip.unbind(1)), -1) for clip in picked]
    pixels = ((torch.cat(rows, 1) + 1) * 127.5).round().byte().permute(1, 2, 0).cpu().numpy()
    Image.fromarray(pixels).save(path, optimize=True)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--model", type=Path, default=Path("models/tiny-t2v"))
    p.add_argument(
        "--out", type=Path, help="folder for heldout.json and samples*.png; the model's by default"
    )
    p.add_argument("--count", type=int, default=512)
    p.add_argument(
        "--size",
        type=int,
        nargs=3,
        action="append",
        metavar=("T", "H", "W"),
        help="clip size, may be repeated; 16 64 64 by default",
    )
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--steps", type=int, default=40)
    p.add_argument("--guidance", type=float, default=3.0)
    p.add_argument("--rows", type=int, default=len(SHEET), help="captions on a sheet; 0 makes none")
    p.add_argument("--seed", type=int, default=0)
    args = p.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = model_file.load(args.model).to(device).eval()
    out = args.out or args.model
    out.mkdir(parents=True, exist_ok=True)
    path = out / "heldout.json"
    report = (
        json.loads(path.read_text()) if path.exists() else {}
    )  # one entry a size: other runs' entries stay
    how = {
        "scenes": args.count,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "command": " ".join(["python3 train/evaluate.py", *sys.argv[1:]]),
    }
    for size in args.size or [[16, 64, 64]]:
        name = "x".join(map(str, size))
        if args.count:
            report[name] = held_out_loss(model, args.count, size, args.batch, device) | how
            print(name, report[name], flush=True)
            path.write_text(json.dumps(report, indent=2) + "\n")
        if args.rows:
            words = captions.encode(list(SHEET[: args.rows]))
            clips = [
                sample(model, words[i : i + 4], size, args.steps, args.guidance, args.seed + i, device)
                for i in range(0, len(words), 4)
            ]
            contact_sheet(
                torch.cat(clips), out / ("samples.png" if name == "16x64x64" else f"samples-{name}.png")
            )
            print(f"sheet of {name} done", flush=True)


if __name__ == "__main__":
    main()
