"""The tiny text-to-video model: a Wan transformer and a word-window text encoder.

Module names are chosen so that `WanTransformer.state_dict()` has the keys and shapes of Diffusers'
`WanTransformer3DModel`: writing the model in that layout is a plain save. Residual stream, norms, modulation
and rotary embedding are FP32; under autocast the linear layers and attention run in BF16. Only what the
text-to-video Wan models use is here: no image branch, no per-token time.
"""

import json
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from captions import INDEX, MAX_WORDS, NULL, PAD, VOCABULARY

TRANSFORMER = {
    "_class_name": "WanTransformer3DModel",
    "added_kv_proj_dim": None,
    "attention_head_dim": 128,
    "cross_attn_norm": True,
    "eps": 1e-06,
    "ffn_dim": 1536,
    "freq_dim": 256,
    "image_dim": None,
    "in_channels": 3,
    "num_attention_heads": 3,
    "num_layers": 8,
    "out_channels": 3,
    "patch_size": [1, 4, 4],
    "pos_embed_seq_len": None,
    "qk_norm": "rms_norm_across_heads",
    "rope_max_seq_len": 1024,
    "text_dim": 256,
}
TEXT_ENCODER = {
    "_class_name": "WordWindowEncoder",
    "max_words": MAX_WORDS,
    "window": 3,
    "width": 256,
    "vocabulary": VOCABULARY,
}
SHIFT = 3.0
SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": SHIFT}


def shifted(u: Tensor) -> Tensor:
    """Noise level of a uniform u: the flow shift moves steps towards noise, where the layout is decided."""
    return SHIFT * u / (1 + (SHIFT - 1) * u)


def rotary_table(grid: tuple[int, int, int], head_dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosines and sines [T*H*W, head_dim/2]: the pairs of a head split over frame, row and column."""
    side = 2 * (head_dim // 6)
    angles = []
    for axis, (length, dim) in enumerate(zip(grid, (head_dim - 2 * side, side, side))):
        frequency = 10000.0 ** (-torch.arange(0, dim, 2, device=device, dtype=torch.float64) / dim)
        a = torch.outer(torch.arange(length, device=device, dtype=torch.float64), frequency)
        shape = [1, 1, 1, -1]
        shape[axis] = length
        angles.append(a.view(shape).expand(*grid, -1))
    table = torch.cat(angles, -1).reshape(math.prod(grid), -1)
    return table.cos().float(), table.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates adjacent pairs of x [B, N, H, D]."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = cos[None, :, None], sin[None, :, None]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int, eps: float):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(dim, dim)])
        self.norm_q, self.norm_k = RMSNorm(dim, eps), RMSNorm(dim, eps)

    def forward(self, x: Tensor, context: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        split = lambda z: z.unflatten(-1, (self.heads, -1))
        q, k, v = (
            split(self.norm_q(self.to_q(x))),
            split(self.norm_k(self.to_k(context))),
            split(self.to_v(context)),
        )
        if rotary is not None:
            q, k = rotate(q, *rotary), rotate(k, *rotary)
        q, k = q.to(v.dtype), k.to(v.dtype)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.to_out[0](out.transpose(1, 2).flatten(2))


class GELUProjection(nn.Module):
    def __init__(self, dim: int, inner: int):
        super().__init__()
        self.proj = nn.Linear(dim, inner)

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.proj(x), approximate="tanh")


class FeedForward(nn.Module):
    def __init__(self, dim: int, inner: int):
        super().__init__()
        self.net = nn.Sequential(GELUProjection(dim, inner), nn.Identity(), nn.Linear(inner, dim))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Block(nn.Module):
    def __init__(self, dim: int, inner: int, heads: int, eps: float):
        super().__init__()
        self.dim, self.eps = dim, eps
        self.attn1, self.attn2 = Attention(dim, heads, eps), Attention(dim, heads, eps)
        self.norm2 = nn.LayerNorm(dim, eps=eps)
        self.ffn = FeedForward(dim, inner)
        self.scale_shift_table = nn.Parameter(torch.randn(1, 6, dim) / dim**0.5)

    def forward(self, x: Tensor, context: Tensor, time: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        shift, scale, gate, ff_shift, ff_scale, ff_gate = (self.scale_shift_table + time.float()).chunk(6, 1)
        norm = lambda z: F.layer_norm(z, (self.dim,), eps=self.eps)
        h = norm(x) * (1 + scale) + shift
        x = x + self.attn1(h, h, (cos, sin)).float() * gate
        x = x + self.attn2(self.norm2(x), context, None).float()
        return x + self.ffn(norm(x) * (1 + ff_scale) + ff_shift).float() * ff_gate


class TwoLayers(nn.Module):
    def __init__(self, inputs: int, dim: int, activation):
        super().__init__()
        self.linear_1, self.linear_2, self.activation = (
            nn.Linear(inputs, dim),
            nn.Linear(dim, dim),
            activation,
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(self.activation(self.linear_1(x)))


class ConditionEmbedder(nn.Module):
    def __init__(self, dim: int, freq_dim: int, text_dim: int):
        super().__init__()
        self.freq_dim = freq_dim
        self.time_embedder = TwoLayers(freq_dim, dim, F.silu)
        self.time_proj = nn.Linear(dim, 6 * dim)
        self.text_embedder = TwoLayers(text_dim, dim, lambda z: F.gelu(z, approximate="tanh"))

    def forward(self, timestep: Tensor, text: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        half = self.freq_dim // 2
        rate = torch.exp(-math.log(10000) / half * torch.arange(half, device=timestep.device))
        angle = timestep[:, None].float() * rate
        time = self.time_embedder(torch.cat((angle.cos(), angle.sin()), -1))
        return time, self.time_proj(F.silu(time)).unflatten(1, (6, -1)), self.text_embedder(text)


class WanTransformer(nn.Module):
    def __init__(self, config: dict):
        super().__init__()
        heads, eps = config["num_attention_heads"], config["eps"]
        dim, self.head_dim, self.patch = (
            heads * config["attention_head_dim"],
            config["attention_head_dim"],
            tuple(config["patch_size"]),
        )
        self.dim, self.eps, self.out_channels = dim, eps, config["out_channels"]
        self.patch_embedding = nn.Conv3d(config["in_channels"], dim, self.patch, self.patch)
        self.condition_embedder = ConditionEmbedder(dim, config["freq_dim"], config["text_dim"])
        self.blocks = nn.ModuleList(
            Block(dim, config["ffn_dim"], heads, eps) for _ in range(config["num_layers"])
        )
        self.proj_out = nn.Linear(dim, self.out_channels * math.prod(self.patch))
        self.scale_shift_table = nn.Parameter(torch.randn(1, 2, dim) / dim**0.5)
        self.tables: dict[tuple, tuple[Tensor, Tensor]] = {}
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        nn.init.zeros_(self.proj_out.weight)

    def forward(self, x: Tensor, timestep: Tensor, text: Tensor) -> Tensor:
        """Velocity of a noisy video x [B, C, T, H, W] at timestep [B] in [0, 1000], text [B, words, W]."""
        batch, channels, *size = x.shape
        pt, ph, pw = self.patch
        grid = (size[0] // pt, size[1] // ph, size[2] // pw)
        # The convolution's stride is its kernel: one linear layer over patches does the same, far quicker.
        patches = x.view(batch, channels, grid[0], pt, grid[1], ph, grid[2], pw).permute(
            0, 2, 4, 6, 1, 3, 5, 7
        )
        h = F.linear(
            patches.reshape(batch, math.prod(grid), -1),
            self.patch_embedding.weight.flatten(1),
            self.patch_embedding.bias,
        ).float()
        key = (grid, x.device)
        if key not in self.tables:
            self.tables[key] = rotary_table(grid, self.head_dim, x.device)
        time, projected, context = self.condition_embedder(timestep, text)
        for block in self.blocks:
            h = block(h, context, projected, *self.tables[key])
        shift, scale = (self.scale_shift_table + time.float()[:, None]).chunk(2, 1)
        h = self.proj_out(F.layer_norm(h, (self.dim,), eps=self.eps) * (1 + scale) + shift)
        h = h.view(batch, *grid, pt, ph, pw, self.out_channels).permute(0, 7, 1, 4, 2, 5, 3, 6)
        return h.reshape(batch, self.out_channels, *size).float()


class TextEncoder(nn.Module):
    """Context row i is a sum over words i-window..i+window, one table per offset, plus a position. This
    is what binds "red" to "star": Wan's cross-attention sees its context as a set."""

    def __init__(self, config: dict):
        super().__init__()
        self.span, self.pad = config["window"], config["vocabulary"].index(PAD)
        self.window = nn.Embedding(1, 1)
        self.position = nn.Embedding(config["max_words"], config["width"])
        self.window.weight = nn.Parameter(
            0.3 * torch.randn(2 * self.span + 1, len(config["vocabulary"]), config["width"])
        )
        nn.init.normal_(self.position.weight, std=0.3)

    def forward(self, words: Tensor) -> Tensor:
        count = words.shape[1]
        padded = F.pad(words, (self.span, self.span), value=self.pad)
        rows = sum(
            F.embedding(padded[:, o : o + count], self.window.weight[o]) for o in range(2 * self.span + 1)
        )
        return rows + self.position.weight


class TextToVideo(nn.Module):
    def __init__(self, transformer: dict = TRANSFORMER, text_encoder: dict = TEXT_ENCODER):
        super().__init__()
        self.transformer, self.text_encoder = WanTransformer(transformer), TextEncoder(text_encoder)

    def forward(self, x: Tensor, timestep: Tensor, words: Tensor) -> Tensor:
        return self.transformer(x, timestep, self.text_encoder(words))


def null_words(words: Tensor) -> Tensor:
    """The caption <null> alone, for every row of words: the unconditional branch."""
    out = torch.full_like(words, INDEX[PAD])
    out[:, 0] = INDEX[NULL]
    return out


def save(model: TextToVideo, folder: Path) -> None:
    """Writes the model in the Diffusers layout, weights rounded to BF16."""
    files = (
        ("transformer", model.transformer, "diffusion_pytorch_model.safetensors", "config.json", TRANSFORMER),
        ("text_encoder", model.text_encoder, "model.safetensors", "config.json", TEXT_ENCODER),
    )
    for name, module, weights, config_name, config in files:
        (folder / name).mkdir(parents=True, exist_ok=True)
        state = {k: v.detach().to("cpu", torch.bfloat16).contiguous() for k, v in module.state_dict().items()}
        save_file(state, folder / name / weights, metadata={"format": "pt"})
        (folder / name / weights).chmod(0o644)
        (folder / name / config_name).write_text(json.dumps(config, indent=2) + "\n")
    (folder / "scheduler").mkdir(exist_ok=True)
    (folder / "scheduler" / "scheduler_config.json").write_text(json.dumps(SCHEDULER, indent=2) + "\n")


def load(folder: Path) -> TextToVideo:
    """Reads what `save` wrote: FP32 parameters holding the rounded values."""
    model = TextToVideo(
        json.loads((folder / "transformer/config.json").read_text()),
        json.loads((folder / "text_encoder/config.json").read_text()),
    )
    for module, path in (
        (model.transformer, "transformer/diffusion_pytorch_model.safetensors"),
        (model.text_encoder, "text_encoder/model.safetensors"),
    ):
        module.load_state_dict({k: v.float() for k, v in load_file(folder / path).items()})
    return model
