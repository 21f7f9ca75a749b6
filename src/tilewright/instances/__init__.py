"""Device GEMMs with the parameters of Composable Kernel: instances, their rules, and their schedules."""
