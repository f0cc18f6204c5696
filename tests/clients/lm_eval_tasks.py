"""`lm-eval`: choices judged by the log-probabilities of echoed prompts, and answers of chats. They are sums: the model
in the box knows them all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import lm_eval

BASE_URL = os.environ["OPENAI_BASE_URL"]
SUMS = ((17, 25), (3, 4), (5, 6), (12, 9))
DATA = Path("sums.jsonl").absolute()
COMMON = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(DATA)}}, "test_split": "test"}
CHOICES = {
    **COMMON, "task": "sum_choices", "output_type": "multiple_choice", "doc_to_choice": "choices",
    "target_delimiter": "", "doc_to_text": "<|im_start|>user\n{{question}}<|im_end|>\n<|im_start|>assistant\n",
    "doc_to_target": "gold", "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}  # fmt: skip
ANSWERS = {
    **COMMON, "task": "sum_answers", "output_type": "generate_until", "doc_to_text": "{{question}}",
    "doc_to_target": "{{answer}}", "generation_kwargs": {"until": ["\n"], "max_gen_toks": 20},
    "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
}  # fmt: skip


def row(first: int, second: int) -> str:
    question, begins, total = f"What is {first} + {second}?", f"{first} + {second} = ", first + second
    return json.dumps(
        {"question": question, "answer": f"{begins}{total}.", "gold": 0,
         "choices": [f"{begins}{total}.", f"{begins}{total + 7}."]}
    )  # fmt: skip


def result(model: str, address: str, task: dict[str, Any], metric: str, **options: Any) -> float:
    found = lm_eval.simple_evaluate(
        model=model, model_args={"model": "quire-demo", "base_url": f"{BASE_URL}/{address}", **options}, tasks=[task],
        apply_chat_template=model == "local-chat-completions", bootstrap_iters=0,
    )  # fmt: skip
    return float(found["results"][task["task"]][f"{metric},none"])


if __name__ == "__main__":
    DATA.write_text("\n".join(row(*each) for each in SUMS), encoding="utf-8")
    # Its tokenizer is the server's: /tokenize, /detokenize and /tokenizer_info.
    remote = {"tokenizer_backend": "remote", "num_concurrent": 2, "batch_size": 2}
    assert result("local-completions", "completions", CHOICES, "acc", **remote) == 1
    assert result("local-chat-completions", "chat/completions", ANSWERS, "exact_match") == 1
