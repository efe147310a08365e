"""Several load generators on several machines: shares of one plan, one start, run folders merged into one."""
