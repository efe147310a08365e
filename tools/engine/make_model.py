"""Make a tiny Qwen2 with random weights, for the real-engine suite: `python make_model.py FOLDER --size narrow`.

Runs with the interpreter of the vLLM environment, which brings torch, transformers and tokenizers. Nothing is fetched:
the weights come from a fixed seed, the tokenizer is trained on the source of Python's standard library and a little
Chinese. What it answers has no meaning; how long it takes, what it caches and how it fails is real.
"""

import argparse
import os
import sysconfig
from collections.abc import Iterator
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

CONTEXT = 16_384
VOCABULARY = 8_192
END, START_OF_MESSAGE, END_OF_MESSAGE = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SIZES = {
    # layers, width, width of the MLP, attention heads, KV heads. A prompt of 4096 tokens takes 1.5 to 2 s of one core:
    "wide": (8, 512, 1536, 8, 4),  # with AVX-512 and bfloat16
    "narrow": (2, 256, 768, 4, 2),  # with AVX2 alone and float32
}
CHINESE = "长提示分段送入,短请求从中间通过。先测量,再判断;排队、预填充、解码都要看得见。"

TEMPLATE = """\
{%- if tools %}<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages -%}
<|im_start|>{{ message['role'] }}
{{ message['content'] if message['content'] is string else message['content'] | tojson }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def texts() -> Iterator[str]:
    """Yield what the tokenizer is trained on."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:150]
    for module in modules:
        yield module.read_text("utf-8", "replace")
    yield from [CHINESE] * 50


def make_tokenizer(folder: Path) -> Tokenizer:
    """Train and write the tokenizer; return it."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, START_OF_MESSAGE, END_OF_MESSAGE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts(), trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END_OF_MESSAGE,
        pad_token=END,
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = TEMPLATE
    wrapped.save_pretrained(folder)
    return bpe


def make_model(folder: Path, bpe: Tokenizer, size: str) -> None:
    """Write the weights and their configuration."""
    layers, width, inner, heads, kv_heads = SIZES[size]
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=CONTEXT,
        rope_theta=1e6,
        tie_word_embeddings=True,
        use_sliding_window=False,
        bos_token_id=bpe.token_to_id(END),
        eos_token_id=bpe.token_to_id(END_OF_MESSAGE),
        pad_token_id=bpe.token_to_id(END),
        torch_dtype="bfloat16",
    )
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    model.save_pretrained(folder)


def main() -> None:
    """Make it, unless it is there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--size", choices=sorted(SIZES), default="wide")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    make_model(options.folder, make_tokenizer(options.folder), options.size)
    print(f"wrote {options.folder}: size {options.size}, context {CONTEXT}")


if __name__ == "__main__":
    main()
