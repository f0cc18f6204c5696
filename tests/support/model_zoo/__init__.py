"""Every causal language model that Transformers has, tiny and random: which of them run here, and how."""
