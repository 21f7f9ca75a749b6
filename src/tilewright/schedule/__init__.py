"""How a dataflow kernel is computed: schedules, and the explicit kernels that they make of one."""
