"""Speculative decoding on the control side, without torch: drafts tokens, and decides how many are worthwhile."""
