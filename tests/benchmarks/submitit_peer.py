import sys

import submitit


def work():
    return 1


executor = submitit.AutoExecutor(folder=sys.argv[1], cluster="slurm")
executor.update_parameters(timeout_min=30, slurm_additional_parameters={"begin": "now+1hour"})
print(executor.submit(work).job_id)
