"""Parts of mlx-lm's mixtures of experts that read more of config.json than it does."""

from dataclasses import dataclass

from mlx_lm.models import qwen2_moe


@dataclass
class Qwen2MoeArgs(qwen2_moe.ModelArgs):  # type: ignore[misc]
    """The fields of Qwen2-MoE with `norm_topk_prob`, which mlx-lm leaves out."""

    norm_topk_prob: bool = False
