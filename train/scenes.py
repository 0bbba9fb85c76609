"""Procedural video scenes: textured shapes moving over a textured ground under a moving camera.

A batch of scenes is two small CPU tensors, `scene` [B, S] and `objects` [B, 3, O], whose columns are named by
SCENE and OBJECT. They are drawn from a CPU generator, so one seed gives the same scenes on every machine;
`render` turns them into video on any device. Every edge is the zero line of a signed distance, softened over
1.6 pixels of the size asked for, so the same scene at 64x64 and at 128x128 is one picture at two resolutions.
World units: the frame spans [-1, 1] both ways, y grows downwards, a clip lasts from t = 0 to t = 1 whatever
its number of frames. No files, no data set, no captions (captions.py says in words what was drawn here).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

SHAPES = ("circle", "square", "triangle", "ring", "star", "cross", "heart", "moon")
SIZES = ("small", "medium", "big")
MOTIONS = (
    "stays still",
    "moves left",
    "moves right",
    "moves up",
    "moves down",
    "orbits",
    "bounces",
    "spins",
    "grows",
    "shrinks",
)
TEXTURES = ("plain", "stripes", "checker", "dots")
CAMERAS = ("fixed", "pans left", "pans right", "zooms in", "zooms out", "rotates")
COLORS = ("red", "green", "blue", "yellow", "purple", "cyan", "orange", "white")
GROUNDS = COLORS + ("black", "gray")

COLOR_RGB = (
    (0.92, 0.14, 0.16),
    (0.16, 0.78, 0.24),
    (0.18, 0.34, 0.95),
    (0.97, 0.88, 0.16),
    (0.62, 0.22, 0.85),
    (0.12, 0.85, 0.90),
    (0.99, 0.55, 0.10),
    (0.96, 0.96, 0.96),
)
GROUND_RGB = (
    (0.52, 0.10, 0.12),
    (0.08, 0.40, 0.18),
    (0.10, 0.18, 0.54),
    (0.66, 0.55, 0.12),
    (0.36, 0.12, 0.46),
    (0.07, 0.44, 0.48),
    (0.64, 0.32, 0.07),
    (0.80, 0.80, 0.82),
    (0.12, 0.12, 0.13),
    (0.38, 0.38, 0.40),
)

SCENE = ("count", "ground", "texture", "frequency", "shift_x", "shift_y", "camera", "speed")
OBJECT = ("shape", "color", "texture", "motion", "size", "radius", "x", "y", "speed", "phase", "tilt", "turn")
MAX_OBJECTS = 3
COUNT_ODDS = (0.42, 0.43, 0.15)  # of 1, 2 and 3 objects: three crowd a 64x64 frame
SIZE_RADIUS = ((0.17, 0.21), (0.24, 0.30), (0.34, 0.42))
EDGE_PIXELS = 1.6


@dataclass(frozen=True)
class Scenes:
    scene: Tensor  # [B, len(SCENE)] float, CPU
    objects: Tensor  # [B, MAX_OBJECTS, len(OBJECT)] float, CPU

    def __len__(self) -> int:
        return self.scene.shape[0]


def draw(count: int, generator: torch.Generator) -> Scenes:
    """Draws `count` scenes. Choices that would make a caption untrue or a subject invisible are not drawn."""

    def uniform(low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(count, generator=generator)

    def choice(n: int) -> Tensor:
        return torch.randint(0, n, (count,), generator=generator)

    ground = choice(len(GROUNDS))
    how_many = 1 + torch.bucketize(uniform(), torch.tensor(COUNT_ODDS[:2]).cumsum(0), right=True)
    scene = {
        "count": how_many,
        "ground": ground,
        "texture": choice(len(TEXTURES)),
        "frequency": uniform(0.9, 1.7),
        "shift_x": uniform(),
        "shift_y": uniform(),
        "camera": choice(len(CAMERAS)),
        "speed": uniform(0.5, 0.9),
    }

    objects, places = [], []
    radii = torch.tensor(SIZE_RADIUS)
    for _ in range(MAX_OBJECTS):
        shape, motion, size = choice(len(SHAPES)), choice(len(MOTIONS)), choice(len(SIZES))
        name = [MOTIONS[m] for m in motion.tolist()]
        texture = choice(len(TEXTURES))
        round_and_plain = ((shape == SHAPES.index("circle")) | (shape == SHAPES.index("ring"))) & (
            texture == 0
        )
        turning = motion == MOTIONS.index("spins")
        texture = torch.where(
            round_and_plain & turning, 1 + choice(len(TEXTURES) - 1), texture
        )  # a turn must show
        color = torch.where(
            ground < len(COLORS), (ground + 1 + choice(len(COLORS) - 1)) % len(COLORS), choice(len(COLORS))
        )  # never the ground's own colour
        place = _apart(places, count, generator)
        places.append(place)
        # Shrink the resting place along the way of travel, so that the subject stays in the frame.
        keep_x = torch.tensor([0.4 if n in ("moves left", "moves right", "orbits") else 1.0 for n in name])
        keep_y = torch.tensor(
            [0.4 if n in ("moves up", "moves down", "orbits", "bounces") else 1.0 for n in name]
        )
        sign = torch.where(choice(2) == 0, -1.0, 1.0)
        low, high = radii[size].unbind(1)
        objects.append(
            {
                "shape": shape,
                "color": color,
                "texture": texture,
                "motion": motion,
                "size": size,
                "radius": low + (high - low) * uniform(),
                "x": place[:, 0] * keep_x,
                "y": place[:, 1] * keep_y,
                "speed": uniform(0.8, 1.3),
                "phase": uniform(),
                "tilt": uniform(-0.2, 0.2),
                "turn": sign,
            }
        )
    return Scenes(
        torch.stack([scene[k].float() for k in SCENE], 1),
        torch.stack([torch.stack([o[k].float() for k in OBJECT], 1) for o in objects], 1),
    )


def _apart(places: list[Tensor], count: int, generator: torch.Generator) -> Tensor:
    """The one of eight random places that lies farthest from those taken: [count, 2]."""
    candidates = torch.rand(count, 8, 2, generator=generator) * 1.2 - 0.6
    if not places:
        return candidates[:, 0]
    gap = torch.stack([(candidates - p[:, None]).norm(dim=-1) for p in places]).amin(0)
    return candidates[torch.arange(count), gap.argmax(1)]


def _rotate(x: Tensor, y: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
    cos, sin = angle.cos(), angle.sin()
    return x * cos - y * sin, x * sin + y * cos


def _coverage(distance: Tensor, pixel: Tensor) -> Tensor:
    """How much of a pixel lies inside (distance < 0), by a smooth step over EDGE_PIXELS."""
    t = (0.5 - distance / (EDGE_PIXELS * pixel)).clamp(0, 1)
    return t * t * (3 - 2 * t)


def _shape_distance(x: Tensor, y: Tensor, kind: Tensor) -> Tensor:
    """Signed distance to each shape of SHAPES at unit radius, the one that `kind` names."""
    ax, ay, r = x.abs(), y.abs(), torch.hypot(x, y)
    sector = torch.remainder(torch.atan2(x, -y) + math.pi / 5, 2 * math.pi / 5) - math.pi / 5
    along, across = r * sector.cos(), r * sector.abs().sin()
    half = (
        0.75  # half the diagonal of the heart's tilted square; its lobes are circles on the two upper sides
    )
    lobe = torch.hypot(ax - half / 2, y - 0.1 + half / 2) - half / math.sqrt(2)
    distances = (
        r - 0.9,
        torch.maximum(ax, ay) - 0.8,
        torch.maximum(y, ax * math.sqrt(0.75) - y * 0.5) - 0.575,
        (r - 0.7).abs() - 0.25,
        (along - 1.1) * 0.338 + across * 0.941,  # the edge from a tip at 1.1 to a notch at .45
        torch.minimum(torch.maximum(ax - 0.32, ay - 0.95), torch.maximum(ax - 0.95, ay - 0.32)),
        torch.minimum((ax + (y - 0.1).abs() - half) / math.sqrt(2), lobe),
        torch.maximum(r - 0.9, 0.75 - torch.hypot(x - 0.42, y + 0.15)),
    )
    return _select(kind, distances)


def _pattern(x: Tensor, y: Tensor, kind: Tensor, frequency: Tensor, pixel: Tensor) -> Tensor:
    """Share of the first of a texture's two colours at each point, edges softened by the pixel's size."""
    fx, fy = (x * frequency) % 1 - 0.5, (y * frequency) % 1 - 0.5
    wx, wy = fx.abs() - 0.25, fy.abs() - 0.25
    distances = (
        torch.full_like(wx, -1.0),
        wx,
        torch.sign(wx * wy) * torch.minimum(wx.abs(), wy.abs()),
        0.32 - torch.hypot(fx, fy),
    )
    return _coverage(_select(kind, distances) / frequency, pixel)


def _select(kind: Tensor, options: tuple[Tensor, ...]) -> Tensor:
    out = options[0]
    for i, option in enumerate(options[1:], 1):
        out = torch.where(kind == i, option, out)
    return out


def _path(motion: Tensor, speed: Tensor, phase: Tensor, turn: Tensor, t: Tensor) -> tuple[Tensor, ...]:
    """Offset, scale and turning angle of an object over time; straight paths are centred on mid-clip."""

    def when(name: str, value: Tensor) -> Tensor:
        return torch.where(motion == MOTIONS.index(name), value, torch.zeros_like(value))

    middle = t - 0.5
    circle = 2 * math.pi * (phase + turn * speed * t)
    hop = 0.75 * torch.sin(math.pi * (phase + 2 * speed * t)).abs()
    dx = (
        when("moves right", speed * middle)
        - when("moves left", speed * middle)
        + when("orbits", 0.4 * circle.cos())
    )
    dy = (
        when("moves down", speed * middle)
        - when("moves up", speed * middle)
        + when("orbits", 0.4 * circle.sin())
        + when("bounces", 0.35 - hop)
    )
    scale = torch.exp(when("grows", 0.9 * middle) - when("shrinks", 0.9 * middle))
    return dx, dy, scale, when("spins", turn * 3.5 * speed * t)


@torch.no_grad()
def render(scenes: Scenes, frames: int, height: int, width: int, device: torch.device | str) -> Tensor:
    """Video [B, 3, frames, height, width] in [-1, 1]."""
    device = torch.device(device)

    def columns(table: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        if device.type == "cuda":  # a blocking copy would drain the queue of a training step
            table = table.pin_memory().to(device, non_blocking=True)
        return {n: c.view(-1, 1, 1, 1) for n, c in zip(names, table.unbind(-1))}

    ground_rgb, color_rgb = (torch.tensor(t, device=device) for t in (GROUND_RGB, COLOR_RGB))
    t = ((torch.arange(frames, device=device) + 0.5) / frames).view(1, -1, 1, 1)
    sy = ((torch.arange(height, device=device) + 0.5) * 2 / height - 1).view(1, 1, -1, 1)
    sx = ((torch.arange(width, device=device) + 0.5) * 2 / width - 1).view(1, 1, 1, -1)

    s = columns(scenes.scene, SCENE)
    camera = lambda name: (s["camera"] == CAMERAS.index(name)).float() * s["speed"] * (t - 0.5)
    scale = torch.exp(camera("zooms out") - camera("zooms in"))
    angle = 1.6 * camera("rotates")
    pixel = 2 / height * scale
    x, y = _rotate(sx, sy, angle)
    x, y = x * scale + camera("pans right") - camera("pans left"), y * scale

    share = _pattern(x + s["shift_x"], y + s["shift_y"], s["texture"], s["frequency"], pixel)
    light = 1 - 0.12 * (sx + sy)
    image = _paint(ground_rgb[s["ground"].flatten().long()], share, 0.5) * light
    for k in range(MAX_OBJECTS):
        o = columns(scenes.objects[:, k], OBJECT)
        dx, dy, grow, spin = _path(o["motion"], o["speed"], o["phase"], o["turn"], t)
        radius, turn = o["radius"] * grow, o["tilt"] + spin
        ox, oy = (x - o["x"] - dx) / radius, (y - o["y"] - dy) / radius
        there = (s["count"] > k).float()

        shadow = _shape_distance(*_rotate(ox - 0.18, oy - 0.26, -turn), o["shape"])
        image = image * (1 - 0.45 * there * torch.sigmoid(-shadow * 9)).unsqueeze(1)
        u, v = _rotate(ox, oy, -turn)
        distance = _shape_distance(u, v, o["shape"])
        alpha = (there * _coverage(distance * radius, pixel)).unsqueeze(1)
        share = _pattern(u + 0.25, v + 0.25, o["texture"], torch.full_like(radius, 0.9), pixel / radius)
        rim = 0.3 * (1 + distance * 3).clamp(0, 1) ** 2
        shade = (0.86 - 0.16 * ((ox + oy) / 1.4).clamp(-1, 1)) * (1 - rim)
        color = _paint(color_rgb[o["color"].flatten().long()], share, 0.3) * shade.unsqueeze(1) * 1.1
        image = image * (1 - alpha) + color * alpha
    return (image.clamp(0, 1) * 2 - 1).contiguous()


def _paint(rgb: Tensor, share: Tensor, dark: float) -> Tensor:
    """[B, 3, T, H, W]: `rgb` where share is 1, `dark` times it where share is 0."""
    return rgb[:, :, None, None, None] * (dark + (1 - dark) * share.unsqueeze(1))
