"""Your reward: verl calls compute_score once an answer."""

import re


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """1 where the answer ends with the known one as a word or number of its own, else 0. Replace it."""
    wanted = str(ground_truth).strip()
    ends = r"(?<![0-9A-Za-z.,-])" + re.escape(wanted) + "$"
    return float(bool(wanted) and re.search(ends, solution_str.strip()) is not None)
