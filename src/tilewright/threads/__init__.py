"""Thread maps: which thread holds which tile element in which register, and the cost of its accesses."""
