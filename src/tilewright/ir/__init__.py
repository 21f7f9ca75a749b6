"""The intermediate representation: types, operations, kernels; printed, parsed and verified here."""
