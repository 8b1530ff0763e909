"""Child process of `bench/evaluation/gguf_equality.py`: llama.cpp's own converter, `convert_hf_to_gguf.py`.

python bench/peers/children/convert_to_gguf.py SOURCE CHECKPOINT FILE.gguf KIND [OPTION]

The converter knows tokenizers by a hash of what they encode, and takes SentencePiece files for some families. The
checkpoints here have a byte-level BPE tokenizer of their own, which is written as GPT-2's for every family.
"""

import importlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any

WITHOUT_MTP = ("Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM", "Qwen3NextForCausalLM")
"""Architectures whose converter looks for a head for multi-token prediction, unless an option says there is none."""


def convert(source: Path, checkpoint: Path, file: Path, kind: str, *more: str) -> None:
    """Run the converter in `source`, the folder of llama.cpp, with `more` of its options."""
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    conversion: Any = importlib.import_module("conversion")
    base: Any = importlib.import_module("conversion.base")
    config = json.loads((checkpoint / "config.json").read_text())
    model_class, hparams = conversion.get_model_class, base.ModelBase.load_hparams

    def of_gpt2(*arguments: Any, **options: Any) -> Any:
        found = model_class(*arguments, **options)
        found.set_vocab = lambda model: model._set_vocab_gpt2()
        return found

    conversion.get_model_class = of_gpt2
    base.TextModel.get_vocab_base_pre = lambda model, tokenizer: "gpt-2"
    # A field of earlier versions of transformers, which today's configurations do not keep.
    rotated = config.get("rotary_pct", config.get("partial_rotary_factor", 1.0))

    def with_rotation(*arguments: Any, **options: Any) -> dict[str, Any]:
        fields: dict[str, Any] = hparams(*arguments, **options)
        return {"rotary_pct": rotated} | fields

    base.ModelBase.load_hparams = staticmethod(with_rotation)
    words = ["convert_hf_to_gguf.py", str(checkpoint), "--outfile", str(file), "--outtype", kind, *more]
    sys.argv = words + (["--no-mtp"] if config["architectures"][0] in WITHOUT_MTP else [])
    runpy.run_path(str(source / "convert_hf_to_gguf.py"), run_name="__main__")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:])
