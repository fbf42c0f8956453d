"""Behaviour evaluation: ask a model, score its answers, report with confidence intervals. Standard library only but for `generate` and `loading`."""
