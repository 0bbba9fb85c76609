"""Trains the tiny text-to-video model by flow matching, on 1..n GPUs under torchrun or on a CPU.

x_t = (1 - s) x0 + s e is fed at timestep 1000 s, the target is e - x0, s = 3u / (1 + 2u) with u uniform.
Captions are dropped one time in ten. Scenes are drawn and rendered inside the step: nothing is read from disk
and nothing repeats. The plan (plan.json) is in seconds of training, not in steps: stages name the clip sizes
and how often each is drawn, the rate is constant and then falls to zero as a cosine. A stopped run continues
from its checkpoint. It writes checkpoints, the exported BF16 model and loss.csv; it measures no held-out loss
(evaluate.py does).
"""

import argparse
import csv
import json
import math
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parallel import DistributedDataParallel

import captions
import model as model_file
import scenes
from muon import Muon

SYNC_EVERY = 8  # steps between looks at the clock: a look drains the device's queue
LOG_EVERY = 32  # steps, a multiple of SYNC_EVERY
PRINT_EVERY = 256  # steps, a multiple of LOG_EVERY
SAVE_EVERY = 60.0  # seconds
CAPTION_DROP = 0.1
AVERAGE = 0.999  # decay of the averaged weights, which are the ones exported


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--plan", type=Path, default=Path(__file__).with_name("plan.json"))
    p.add_argument(
        "--out", type=Path, default=Path("run"), help="folder of checkpoint.pt, loss.csv and model/"
    )
    p.add_argument(
        "--limit", type=float, default=math.inf, help="stop after this many seconds of this process"
    )
    p.add_argument("--until", type=float, default=math.inf, help="stop at this second of the plan")
    p.add_argument(
        "--total", type=float, help="replaces the plan's total_seconds, and the end of its last stage"
    )
    p.add_argument("--muon-lr", type=float, default=0.016)
    p.add_argument("--adam-lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=0, help="of the initial weights and of the noise")
    p.add_argument(
        "--attention", choices=("flash", "cudnn"), default="flash", help="first choice of GPU kernel"
    )
    p.add_argument("--no-compile", action="store_true")
    return p.parse_args()


class Ranks:
    """This process's place among those that torchrun started; alone, it talks to nobody."""

    def __init__(self) -> None:
        self.count, self.rank, local = (
            int(os.environ.get(k, d)) for k, d in (("WORLD_SIZE", 1), ("RANK", 0), ("LOCAL_RANK", 0))
        )
        self.gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", local) if self.gpu else torch.device("cpu")
        if self.gpu:
            torch.cuda.set_device(self.device)
        if self.count > 1:
            dist.init_process_group("nccl" if self.gpu else "gloo")

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.count == 1:
            return model
        return DistributedDataParallel(
            model, [self.device.index] if self.gpu else None, gradient_as_bucket_view=True
        )

    def mean(self, values: Tensor) -> list[float]:
        if self.count > 1:
            dist.all_reduce(values)
        return (values / self.count).tolist()


class Run:
    """Everything that a checkpoint holds."""

    def __init__(self, args: argparse.Namespace, ranks: Ranks):
        torch.manual_seed(args.seed)
        self.folder, self.ranks = args.out, ranks
        self.model = model_file.TextToVideo().to(ranks.device)
        self.average = model_file.TextToVideo().to(ranks.device).requires_grad_(False)
        self.average.load_state_dict(self.model.state_dict())
        hidden = [
            p
            for n, p in self.model.named_parameters()
            if "blocks." in n and n.endswith("weight") and p.ndim == 2
        ]
        taken = {id(p) for p in hidden}
        others = [p for p in self.model.parameters() if id(p) not in taken]
        self.optimisers = [
            Muon(hidden, args.muon_lr),
            torch.optim.AdamW(others, args.adam_lr, (0.9, 0.99), weight_decay=0.01, fused=ranks.gpu),
        ]
        for group in self.groups():
            group["base_lr"] = group["lr"]
        self.step, self.seconds, self.clips, self.rows = 0, 0.0, 0, []
        if (self.folder / "checkpoint.pt").exists():
            self.load()

    def groups(self) -> list[dict]:
        return [g for o in self.optimisers for g in o.param_groups]

    def load(self) -> None:
        saved = torch.load(self.folder / "checkpoint.pt", map_location="cpu", weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.average.load_state_dict(saved["average"])
        for optimiser, state in zip(self.optimisers, saved["optimisers"]):
            optimiser.load_state_dict(state)
        self.step, self.seconds, self.clips, self.rows = (
            saved[k] for k in ("step", "seconds", "clips", "rows")
        )

    def save(self) -> None:
        if self.ranks.rank != 0:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        whole, part = self.folder / "checkpoint.pt", self.folder / "checkpoint.new"
        torch.save(
            {
                "model": self.model.state_dict(),
                "average": self.average.state_dict(),
                "optimisers": [o.state_dict() for o in self.optimisers],
                "step": self.step,
                "seconds": self.seconds,
                "clips": self.clips,
                "rows": self.rows,
            },
            part,
        )
        part.replace(whole)  # a run killed in the middle of a save keeps the checkpoint before it
        with open(self.folder / "loss.csv", "w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(
                [("step", "seconds", "clips", "size", "rate", "loss"), *self.rows]
            )

    def update(self, multiplier: float) -> None:
        """One step of both optimisers and of the averaged weights from the gradients at hand."""
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.groups():
            group["lr"] = group["base_lr"] * multiplier
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        weight = 1 - min(AVERAGE, (self.step + 1) / (self.step + 10))
        torch._foreach_lerp_(list(self.average.parameters()), list(self.model.parameters()), weight)


def rate(step: int, seconds: float, plan: dict) -> float:
    """Multiplier of the learning rates: 100 steps of warm-up, a plateau, a cosine to zero."""
    start = plan["decay_from"] * plan["total_seconds"]
    done = min(1.0, max(0.0, (seconds - start) / (plan["total_seconds"] - start)))
    return min(1.0, (step + 1) / 100) * 0.5 * (1 + math.cos(math.pi * done))


def pick_shape(step: int, seconds: float, plan: dict) -> dict:
    """The clip size of a step, the same on every rank."""
    stage = next((s for s in plan["stages"] if seconds < s["until"]), plan["stages"][-1])
    return random.Random(step).choices(stage["shapes"], [s["share"] for s in stage["shapes"]])[0]


def shapes_within(begin: float, end: float, plan: dict) -> list[dict]:
    """The distinct shapes of the stages that overlap [begin, end)."""
    shapes, stage_begin = [], 0.0
    for stage in plan["stages"]:
        if stage["until"] > begin and stage_begin < end:
            shapes += [s for s in stage["shapes"] if s not in shapes]
        stage_begin = stage["until"]
    return shapes


def make_batch(shape: dict, seed: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Video [B, 3, T, H, W] and word numbers [B, MAX_WORDS]."""
    generator = torch.Generator().manual_seed(seed)
    drawn = scenes.draw(shape["batch"], generator)
    words = captions.encode(captions.describe(drawn))
    dropped = torch.rand(len(drawn), generator=generator) < CAPTION_DROP
    words = torch.where(dropped[:, None], model_file.null_words(words), words)
    if device.type == "cuda":
        words = words.pin_memory().to(device, non_blocking=True)
    return scenes.render(drawn, *shape["size"], device), words


def flow_loss(model: nn.Module, x: Tensor, words: Tensor) -> Tensor:
    s = model_file.shifted(torch.rand(len(x), device=x.device))
    noise = torch.randn_like(x)
    level = s.view(-1, 1, 1, 1, 1)
    with torch.autocast(x.device.type, torch.bfloat16):
        velocity = model((1 - level) * x + level * noise, 1000 * s, words)
    return (velocity - (noise - x)).square().mean()


def warm_up(run: Run, model: nn.Module, shapes: list[dict], start: float) -> None:
    """Compiles for each shape and touches its memory, so that neither counts as training nor fails midway."""
    for shape in shapes:
        flow_loss(model, *make_batch(shape, 0, run.ranks.device)).backward()
        run.model.zero_grad(set_to_none=True)
        if run.ranks.gpu:
            torch.cuda.synchronize()
        if run.ranks.rank == 0:
            print(f"ready for {shape['size']} after {time.monotonic() - start:.0f} s", flush=True)


def log(run: Run, pending: dict[str, list[float]], multiplier: float) -> None:
    means = {size: round(sum(v) / len(v), 5) for size, v in pending.items()}
    run.rows += [
        (run.step, round(run.seconds, 2), run.clips, s, round(multiplier, 4), m) for s, m in means.items()
    ]
    pending.clear()
    if run.ranks.rank == 0 and run.step % PRINT_EVERY == 0:
        print(
            f"step {run.step} at {run.seconds:.0f} s, {run.clips} clips, rate {multiplier:.3f}, loss "
            + ", ".join(f"{s} {m:.4f}" for s, m in means.items()),
            flush=True,
        )


def train(args: argparse.Namespace) -> None:
    process_start = time.monotonic()
    plan = json.loads(args.plan.read_text())
    if args.total:
        plan["total_seconds"] = plan["stages"][-1]["until"] = args.total
    ranks = Ranks()
    run = Run(args, ranks)
    if not args.no_compile:
        for (
            block
        ) in run.model.transformer.blocks:  # one small graph shared by all blocks: seconds, not minutes
            block.compile(dynamic=False)
    model = ranks.wrap(run.model)
    torch.manual_seed(args.seed + 1000 * ranks.rank + 100_000 * (run.step + 1))
    end = min(args.until, plan["total_seconds"])
    warm_up(run, model, shapes_within(run.seconds, min(end, run.seconds + args.limit), plan), process_start)

    offset, last_save, stop = run.seconds - time.monotonic(), run.seconds, 0.0
    losses: list[tuple[str, Tensor]] = []
    pending: dict[str, list[float]] = {}
    while run.seconds < end and not stop:
        shape = pick_shape(run.step, run.seconds, plan)
        multiplier = rate(run.step, run.seconds, plan)
        # A CPU generator uses 32 bits of its seed. The top one keeps these apart from evaluation's seeds.
        loss = flow_loss(model, *make_batch(shape, 1 << 31 | run.step << 6 | ranks.rank, ranks.device))
        loss.backward()
        run.update(multiplier)
        run.step, run.clips = run.step + 1, run.clips + shape["batch"] * ranks.count
        losses.append(("x".join(map(str, shape["size"])), loss.detach()))
        if run.step % SYNC_EVERY:
            continue
        # Ranks read their own clocks, and must agree on the next clip size and on when to stop.
        now = time.monotonic()
        mine = torch.tensor((now + offset, float(now - process_start > args.limit)), device=ranks.device)
        *values, run.seconds, stop = ranks.mean(torch.cat((torch.stack([v for _, v in losses]), mine)))
        for (size, _), value in zip(losses, values):
            pending.setdefault(size, []).append(value)
        losses.clear()
        if run.step % LOG_EVERY == 0:
            log(run, pending, multiplier)
        if run.seconds - last_save > SAVE_EVERY:
            run.save()
            last_save = run.seconds
    run.save()
    if ranks.rank == 0:
        model_file.save(run.average, args.out / "model")
        print(
            f"stopped at step {run.step}, {run.seconds:.0f} s of {plan['total_seconds']}, {run.clips} clips",
            flush=True,
        )
    if ranks.count > 1:
        dist.destroy_process_group()


def main() -> None:
    args = arguments()
    kernels = [
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ]
    if args.attention == "cudnn":
        kernels[:2] = kernels[1::-1]
    with sdpa_kernel(kernels, set_priority=True):
        train(args)


if __name__ == "__main__":
    main()
