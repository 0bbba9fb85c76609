"""Plain English captions of scenes, and the vocabulary that encodes them.

    caption    = objects "over" article ground [texture] "background" ["," "camera" movement]
    objects    = object | object "and" object | object "," object "and" object
    object     = article [size] color [texture] shape motion

A plain texture and a medium size are not said; "camera fixed" is said half of the time that it is true.
Everything that is said can be seen. Positions and speeds are left to chance. Words are lower case, commas and
full stops only separate.
"""

import torch
from torch import Tensor

from scenes import (
    CAMERAS,
    COLORS,
    GROUNDS,
    MOTIONS,
    OBJECT,
    SCENE,
    SHAPES,
    SIZES,
    TEXTURES,
    Scenes,
)

MAX_WORDS = 32
PAD, NULL = "<pad>", "<null>"
OBJECT_TEXTURES = ("", "striped", "checkered", "dotted")  # as TEXTURES, but said of a thing


def _vocabulary() -> list[str]:
    words = ["a", "an", "and", "over", "background", "camera"]
    for group in (SIZES, GROUNDS, OBJECT_TEXTURES, SHAPES, MOTIONS, TEXTURES, CAMERAS):
        for phrase in group:
            words += [w for w in phrase.split() if w not in words and w not in ("medium", "plain")]
    return [PAD, NULL] + words


VOCABULARY = _vocabulary()
INDEX = {word: i for i, word in enumerate(VOCABULARY)}


def _with_article(words: list[str]) -> str:
    words = [w for w in words if w]
    return " ".join([("an" if words[0][0] in "aeiou" else "a"), *words])


def describe(scenes: Scenes) -> list[str]:
    """One caption per scene. The ground's shift decides whether a fixed camera is said: no draw is spent."""
    captions = []
    for row, things in zip(scenes.scene.tolist(), scenes.objects.tolist()):
        s = dict(zip(SCENE, row))
        objects = []
        for thing in things[: int(s["count"])]:
            o = {k: int(v) for k, v in zip(OBJECT[:5], thing[:5])}
            size = "" if SIZES[o["size"]] == "medium" else SIZES[o["size"]]
            objects.append(
                _with_article(
                    [
                        size,
                        COLORS[o["color"]],
                        OBJECT_TEXTURES[o["texture"]],
                        SHAPES[o["shape"]],
                        MOTIONS[o["motion"]],
                    ]
                )
            )
        subject = objects[0] if len(objects) == 1 else ", ".join(objects[:-1]) + " and " + objects[-1]
        texture = TEXTURES[int(s["texture"])]
        ground = _with_article(
            [GROUNDS[int(s["ground"])], "" if texture == "plain" else texture, "background"]
        )
        camera = CAMERAS[int(s["camera"])]
        said = camera != "fixed" or s["shift_x"] < 0.5
        captions.append(f"{subject} over {ground}" + (f", camera {camera}" if said else ""))
    return captions


def encode(captions: list[str]) -> Tensor:
    """Word numbers [B, MAX_WORDS], padded with <pad>. An unknown word or too many words are an error."""
    rows = torch.full((len(captions), MAX_WORDS), INDEX[PAD], dtype=torch.long)
    for i, caption in enumerate(captions):
        words = caption.lower().replace(",", " ").replace(".", " ").split()
        if len(words) > MAX_WORDS:
            raise ValueError(f"caption has {len(words)} words, at most {MAX_WORDS} fit: {caption!r}")
        unknown = [w for w in words if w not in INDEX]
        if unknown:
            raise ValueError(
                f"unknown word {unknown[0]!r} in {caption!r}; known words: {' '.join(VOCABULARY[2:])}"
            )
        rows[i, : len(words)] = torch.tensor([INDEX[w] for w in words], dtype=torch.long)
    return rows
