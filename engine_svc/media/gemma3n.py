"""What Gemma 3n hears with: Transformers' whole model cannot be made without timm, which has its image encoder."""

from __future__ import annotations

import torch
import transformers
from transformers.models.gemma3n.modeling_gemma3n import (
    Gemma3nAudioEncoder,
    Gemma3nMultimodalEmbedder,
    Gemma3nPreTrainedModel,
)


class Gemma3nHearing(Gemma3nPreTrainedModel):
    """The audio encoder, and what turns its output and the tokens around it into embeddings."""

    def __init__(self, config: transformers.Gemma3nConfig) -> None:
        super().__init__(config)
        self.audio_tower = Gemma3nAudioEncoder(config.audio_config)
        self.embed_audio = Gemma3nMultimodalEmbedder(config.audio_config, config.text_config)
        self.post_init()

    def get_audio_features(self, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The embeddings of an audio, which are always as many, and after them that of the token that ends it.

        Args:
            features: [1, frames, mels]
            mask: [1, frames], true where they are not padding.

        Returns: [embeddings, hidden_size]
        """
        config, audio = self.config, self.config.audio_config
        found = self.audio_tower(features, ~mask)
        heard = self.embed_audio(inputs_embeds=found.last_hidden_state[~found.audio_mel_mask])
        ids = [audio.vocab_offset + audio.vocab_size - 1, config.eoa_token_id]  # the first one stands for padding
        padding, end = self.embed_audio(input_ids=torch.tensor(ids, device=features.device)).split(1)
        return torch.cat([heard, padding.expand(config.audio_soft_tokens_per_image - len(heard), -1), end])
