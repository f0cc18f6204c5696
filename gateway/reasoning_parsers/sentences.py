"""Reasoning between two sentences that the system prompt asks for."""

from __future__ import annotations

from gateway.reasoning_parsers.answer_tags import AnswerInTags


class GraniteSentences(AnswerInTags):
    """Granite 3.2, in the two spellings its models use; and Granite 3.3, which has tags, around the answer too."""

    start_mark = "Here is my thought process:"
    end_mark = "Here is my response:"
    other_start_marks = ("Here's my thought process:", "<think>")
    other_end_marks = ("Here's my response:", "</think>")
    answer_start = "<response>"
    answer_end = "</response>"
    blanks = " \n"
