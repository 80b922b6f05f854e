"""The parts of gpu_check.py, one file each; result.py and running.py keep what they measure when one of them fails."""
