/* Stands in for torch's library of the same name: what it was built for is one literal in it. */

const char *arch_flags(void) { return CUDA_ARCH_FLAGS; }
