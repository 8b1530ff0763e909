"""The head for multi-token prediction of Qwen3.5 and Qwen3-Next, of transformers' modules: transformers leaves its
weights out. As in vLLM (https://github.com/vllm-project/vllm, `qwen3_5_mtp.py`)."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.checkpoints.checkpoint import open_weights

Array = NDArray[np.float64]


class QwenMtpReference:
    """Computes whole sequences in float64, without a cache."""

    def __init__(self, path: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        self._model: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float64, experts_implementation="eager"
        ).eval()
        base = self._model.model
        norm, layer = type(base.norm), next(each for each in base.layers if hasattr(each, "self_attn"))
        hidden, eps = self._model.config.hidden_size, self._model.config.rms_norm_eps
        index = list(base.layers).index(layer)
        self._layer = type(layer)(self._model.config, index).double().eval()
        self._norms = {name: norm(hidden, eps=eps).double() for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden")}
        self._norms["norm"] = norm(hidden, eps=eps).double()
        weights = {name: torch.tensor(tensor.astype(np.float64)) for name, tensor in open_weights(path).items()}
        self._fc = weights["mtp.fc.weight"]
        for name, module in self._norms.items():
            module.load_state_dict({"weight": weights[f"mtp.{name}.weight"]})
        self._layer.load_state_dict(self._state(weights))

    def _state(self, weights: dict[str, Any]) -> dict[str, Any]:
        """The tensors of the layer; single experts are stacked, as transformers has them."""
        prefix = "mtp.layers.0."
        mine = {name.removeprefix(prefix): each for name, each in weights.items() if name.startswith(prefix)}
        single = [name for name in mine if ".experts." in name]
        if single:
            count = 1 + max(int(name.split(".")[2]) for name in single)
            parts = [[mine.pop(f"mlp.experts.{e}.{name}_proj.weight") for e in range(count)] for name in _PARTS]
            stack = self._torch.stack
            both = [self._torch.cat(pair) for pair in zip(parts[0], parts[1], strict=True)]
            mine |= {"mlp.experts.gate_up_proj": stack(both), "mlp.experts.down_proj": stack(parts[2])}
        return mine

    def hidden(self, tokens: tuple[int, ...]) -> Array:
        """The hidden states behind the last layer, before the norm."""
        seen: list[Any] = []
        hook = self._model.model.norm.register_forward_hook(lambda _, given, __: seen.append(given[0]))
        with self._torch.no_grad():
            self._model(self._torch.tensor([tokens]))
        hook.remove()
        hidden: Array = seen[0][0].numpy()
        return hidden

    def mtp(self, hidden: Array, following: tuple[int, ...]) -> tuple[Array, Array]:
        """The logits of the head for hidden states and the tokens after them, and its own hidden states."""
        torch, base = self._torch, self._model.model
        with torch.no_grad():
            given, rows = torch.tensor(hidden)[None], len(following)
            embedded = self._norms["pre_fc_norm_embedding"](base.embed_tokens(torch.tensor([following])))
            both = torch.cat([embedded, self._norms["pre_fc_norm_hidden"](given)], dim=-1)
            x = both @ self._fc.T
            positions = torch.arange(rows)[None]
            mask = torch.full((rows, rows), float("-inf"), dtype=torch.float64).triu(1)[None, None]
            angles = base.rotary_emb(x, positions)
            x = self._layer(x, position_embeddings=angles, attention_mask=mask, position_ids=positions)
            out = self._norms["norm"](x[0] if isinstance(x, tuple) else x)
            return self._model.lm_head(out)[0].numpy(), out[0].numpy()


_PARTS = ("gate", "up", "down")
