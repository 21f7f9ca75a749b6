"""How a dataflow kernel is computed: schedules, and the explicit kernels that they make of one."""

from tilewright.schedule import resources as resources  # its tables name what a schedule may say
