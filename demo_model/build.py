"""Makes the demo model and its draft from nothing: `python -m demo_model.build FOLDER`.

About an hour on two CPU cores, minutes on a GPU. FOLDER gets `quire-demo` and `quire-demo-draft`, each a complete model
folder, and the loss curve of each as JSON lines.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

import torch
import transformers

from demo_model.dataset import Encoder
from demo_model.tokenizer import train_tokenizer
from demo_model.train import DEMO, DRAFT, Phase, Point, Recipe, make_model, train

TOKENIZER_SEED = 0
RECIPES = {"quire-demo": DEMO, "quire-demo-draft": DRAFT}


def build(name: str, recipe: Recipe, folder: Path, device: torch.device, compiled: bool) -> None:
    """Trains one model and saves it, with its tokenizer and curve."""
    tokenizer = train_tokenizer(TOKENIZER_SEED)
    model = make_model(recipe, tokenizer)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    steps = sum(phase.steps for phase in recipe.phases)
    print(f"{name}: {parameters:,} parameters, {steps} steps on {device}", flush=True)
    if compiled:
        model.model.compile(dynamic=True)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.curve.jsonl").open("w", encoding="utf-8") as curve:

        def report(point: Point) -> None:
            print(f"  step {point.step}  loss {point.loss:.4f}  {point.seconds:.0f} s", flush=True)
            curve.write(json.dumps(dataclasses.asdict(point)) + "\n")

        train(model, Encoder(tokenizer), recipe, device, report)
    save(model, tokenizer, folder)


def save(model: transformers.PreTrainedModel, tokenizer: transformers.PreTrainedTokenizerFast, folder: Path) -> None:
    """Writes a model folder in bfloat16 that decodes greedily by default."""
    model.generation_config = transformers.GenerationConfig(
        do_sample=False, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", choices=RECIPES, help="makes one of the two")
    parser.add_argument("--steps", type=int, help="for a quick look, fewer than the recipe's")
    parser.add_argument("--compile", action="store_true", help="compiles the model first: a third faster on a CPU")
    arguments = parser.parse_args()
    for name, recipe in RECIPES.items():
        if arguments.only in (None, name):
            quick = arguments.steps and (Phase(arguments.steps, late_step=arguments.steps // 2),)
            chosen = dataclasses.replace(recipe, phases=quick) if quick else recipe
            build(name, chosen, arguments.folder / name, torch.device(arguments.device), arguments.compile)


if __name__ == "__main__":
    main()
