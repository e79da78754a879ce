/* A stand-in for libnccl.so.2 that knows only its version: CODE as 22105, VERSION as "2.21.5". */

const char version[] = "NCCL version " VERSION "+cuda12.4";

int ncclGetVersion(int *out)
{
    *out = CODE;
    return 0;
}
