"""Your reward: verl calls compute_score once an answer."""


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """1 where the answer ends with the known one, else 0. Replace it."""
    return float(solution_str.strip().endswith(str(ground_truth).strip()))
