"""What an answer is worth. Each function gets lists with an element an answer and returns a list of numbers; TRL's reward functions fit.

completions: a list of one assistant message each, or text where the prompt is text. The rows' other keys come by name.
"""


def text_of(completion):
    """The text of an answer."""
    return completion if isinstance(completion, str) else completion[0]["content"]


def exact_match(prompts, completions, answer, **columns):
    """1 where the answer is the row's `answer`, white space at its ends aside; else 0."""
    return [float(text_of(c).strip() == str(a).strip()) for c, a in zip(completions, answer, strict=True)]
