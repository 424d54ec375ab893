"""Generate text with a transformers model before and after posenc_native.hf.patch.

    python examples/patched_generation.py                  a small Llama, trained here
    python examples/patched_generation.py --model PATH     a model that you have, its tokenizer too
    python examples/patched_generation.py --prompt "It was"

Nothing is downloaded. The small Llama reads bytes and is trained on a novel for a moment, patched,
since gradients flow through a patched model as before. Then a prompt is continued with the same
random numbers by the model as transformers has it, patched, and after undo. Shown are the text,
whether the tokens are the same, and the time for each, the median of several turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

try:
    import torch
    import transformers
    from torch import Tensor

    from posenc_native import hf
except ImportError as error:
    sys.exit(f"patched_generation: {error}: pip install 'posenc-native[hf]'")

TEXT = Path(__file__).parent / "data" / "northanger_abbey.txt"


class Bytes:
    """A tokenizer whose tokens are bytes, with the two calls that are needed here."""

    def __call__(self, text: str, return_tensors: str = "pt") -> dict[str, Tensor]:
        """The bytes of a text, [1, s]."""
        return {"input_ids": torch.tensor([list(text.encode())])}

    def decode(self, tokens: Tensor) -> str:
        """The text of tokens [s]."""
        return bytes(tokens.tolist()).decode(errors="replace")


def trained_here(steps: int) -> tuple[Any, Bytes]:
    """A Llama of 0.7 million weights that has read some batches of the novel, patched."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: Any = transformers.LlamaForCausalLM(config)
    data = torch.tensor(list(TEXT.read_bytes()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    window = torch.arange(129)
    with hf.patch(model):
        for step in range(1, steps + 1):
            batch = data[torch.randint(len(data) - 128, (8, 1)) + window]
            loss = model(batch, labels=batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 100 == 0 or step == steps:
                print(f"trained on {step} of {steps} batches, loss {loss.item():.2f}", flush=True)
    return model.eval(), Bytes()


def loaded(path: Path) -> tuple[Any, Any]:
    """A model and its tokenizer from a folder."""
    if not (path / "config.json").exists():
        raise OSError(f"--model: expected a folder with a config.json, got {path}")
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(path, local_files_only=True)
    return model.eval(), transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)


def generate(model: Any, inputs: dict[str, Tensor], count: int) -> tuple[Tensor, float]:
    """`count` new tokens, and the seconds that each took."""
    torch.manual_seed(1)  # the same choices from the same probabilities
    start = time.perf_counter()
    out = model.generate(
        **inputs,
        attention_mask=torch.ones_like(inputs["input_ids"]),
        do_sample=True,
        temperature=0.7,
        min_new_tokens=count,
        max_new_tokens=count,
        pad_token_id=0,
    )
    seconds = (time.perf_counter() - start) / count
    return out[0, inputs["input_ids"].shape[1] :], seconds


def run(options: argparse.Namespace) -> None:
    """Generate in turns, compare."""
    steps, count, turns = (3, 8, 1) if options.quick else (400, options.tokens, 7)
    model, tokenizer = loaded(options.model) if options.model else trained_here(steps)
    inputs = {"input_ids": tokenizer(options.prompt, return_tensors="pt")["input_ids"]}

    generate(model, inputs, count)  # a first call is slower
    before, after = [], []
    for _ in range(turns):
        before.append(generate(model, inputs, count))
        with hf.patch(model) as handle:
            after.append(generate(model, inputs, count))
    undone = generate(model, inputs, count)

    tokens = before[0][0]
    print(f"\n{options.prompt}{tokenizer.decode(tokens)}\n")
    print(f"{len(handle.patched)} modules patched, {len(handle.skipped)} left alone")
    for name, (other, _) in (("patched", after[0]), ("undone", undone)):
        same = int((other == tokens).long().cumprod(0).sum())
        print(f"{name}: {same} of {count} tokens are the same")
    for name, results in (("transformers", before), ("patched", after)):
        print(f"{name}: {1e3 * statistics.median(t for _, t in results):.2f} ms a token")


def main() -> int:
    """The exit status; errors are one line."""
    parser = argparse.ArgumentParser(
        prog="patched_generation",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("--model", type=Path, help="a folder, as save_pretrained writes it")
    parser.add_argument("--prompt", default="Catherine was ", help="default: %(default)r")
    parser.add_argument("--tokens", type=int, default=200, help="how many; default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="seconds, to see it run")
    options = parser.parse_args()
    if options.tokens < 1 or not options.prompt:
        parser.error("--tokens is at least 1, and --prompt is not empty")
    try:
        run(options)
    except (OSError, ValueError) as error:
        print(f"patched_generation: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
