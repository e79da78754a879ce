/* A stand-in for the NVIDIA driver's libnvidia-ml.so.1.

   Values are read from VALUES at each call, one `key=value` a line; those of a GPU begin with
   `gpu0.`. A function that is not here is one that an old driver does not have. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VALUES "/etc/testbed-nvml"
#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define DRIVER_NOT_LOADED 9

typedef unsigned int u32;
typedef unsigned long long u64;

static int text(const char *key, char *out, size_t size)
{
    FILE *file = fopen(VALUES, "r");
    char line[512];
    size_t length = strlen(key);
    int found = 0;
    if (!file)
        return 0;
    while (!found && fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && line[length] == '=') {
            line[strcspn(line, "\n")] = 0;
            snprintf(out, size, "%s", line + length + 1);
            found = 1;
        }
    fclose(file);
    return found;
}

static long long number(const char *key, long long otherwise)
{
    char value[64];
    return text(key, value, sizeof value) ? strtoll(value, 0, 0) : otherwise;
}

static const char *of(void *gpu, const char *key)
{
    static _Thread_local char full[64];
    snprintf(full, sizeof full, "gpu%ld.%s", (long)gpu - 1, key);
    return full;
}

static int string(const char *key, char *out, u32 size)
{
    char value[256];
    if (!text(key, value, sizeof value))
        return NOT_SUPPORTED;
    if (strlen(value) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(out, value);
    return SUCCESS;
}

static int numeric(const char *key, u32 *out)
{
    long long value = number(key, -1);
    if (value < 0)
        return NOT_SUPPORTED;
    *out = value;
    return SUCCESS;
}

#define STRING(function, key) \
    int function(void *gpu, char *out, u32 size) { return string(of(gpu, key), out, size); }
#define NUMBER(function, key) \
    int function(void *gpu, u32 *out) { return numeric(of(gpu, key), out); }

int nvmlInitWithFlags(u32 flags)
{
    char driver[8];
    (void)flags;
    return number("init_rc", text("driver", driver, sizeof driver) ? SUCCESS : DRIVER_NOT_LOADED);
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code)
{
    switch (code) {
    case 0: return "Success";
    case 3: return "Not Supported";
    case 9: return "Driver Not Loaded";
    case 15: return "GPU is lost";
    case 18: return "Driver/library version mismatch";
    case 999: return "Unknown Error";
    }
    return "Error";
}

int nvmlSystemGetDriverVersion(char *out, u32 size) { return string("driver", out, size); }
int nvmlSystemGetNVMLVersion(char *out, u32 size) { return string("nvml", out, size); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { return numeric("cuda", (u32 *)out); }
int nvmlSystemGetCudaDriverVersion(int *out) { return numeric("cuda", (u32 *)out); }
int nvmlDeviceGetCount_v2(u32 *out) { return numeric("count", out); }

int nvmlDeviceGetHandleByIndex_v2(u32 index, void **out)
{
    void *gpu = (void *)(long)(index + 1);
    int code = number(of(gpu, "handle_rc"), SUCCESS);
    if (index >= number("count", 0))
        return INVALID_ARGUMENT;
    if (!code)
        *out = gpu;
    return code;
}

STRING(nvmlDeviceGetName, "name")
STRING(nvmlDeviceGetUUID, "uuid")
STRING(nvmlDeviceGetSerial, "serial")
STRING(nvmlDeviceGetVbiosVersion, "vbios")
NUMBER(nvmlDeviceGetMinorNumber, "minor")
NUMBER(nvmlDeviceGetPersistenceMode, "persistence")
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_gen")
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_gen_max")
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")

int nvmlDeviceGetIndex(void *gpu, u32 *out)
{
    *out = (long)gpu - 1;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor)
{
    char value[16];
    if (!text(of(gpu, "capability"), value, sizeof value))
        return NOT_SUPPORTED;
    return sscanf(value, "%d.%d", major, minor) == 2 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMigMode(void *gpu, u32 *current, u32 *pending)
{
    int code = numeric(of(gpu, "mig"), current);
    *pending = *current;
    return code;
}

typedef struct {
    u64 total, free, used;
} memory;

int nvmlDeviceGetMemoryInfo(void *gpu, memory *out)
{
    out->total = number(of(gpu, "memory_total"), 0);
    out->used = number(of(gpu, "memory_used"), 0);
    out->free = out->total - out->used;
    return out->total ? SUCCESS : NOT_SUPPORTED;
}

typedef struct {
    u32 version;
    u64 total, reserved, free, used;
} memory_v2;

int nvmlDeviceGetMemoryInfo_v2(void *gpu, memory_v2 *out)
{
    out->total = number(of(gpu, "memory_total"), 0);
    out->reserved = number(of(gpu, "memory_reserved"), 0);
    out->used = number(of(gpu, "memory_used"), 0);
    out->free = out->total - out->reserved - out->used;
    return out->total ? SUCCESS : NOT_SUPPORTED;
}

typedef struct {
    char legacy[16];
    u32 domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} pci;

int nvmlDeviceGetPciInfo_v3(void *gpu, pci *out)
{
    memset(out, 0, sizeof *out);
    if (string(of(gpu, "pci"), out->bus_id, sizeof out->bus_id))
        return NOT_SUPPORTED;
    snprintf(out->legacy, sizeof out->legacy, "%.12s", out->bus_id + 4);
    sscanf(out->bus_id, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    out->device_id = number(of(gpu, "pci_device"), 0);
    return SUCCESS;
}

int nvmlDeviceGetTemperature(void *gpu, int sensor, u32 *out)
{
    (void)sensor;
    return numeric(of(gpu, "temperature"), out);
}

int nvmlDeviceGetTotalEccErrors(void *gpu, int kind, int counter, u64 *out)
{
    (void)counter;
    long long value = number(of(gpu, kind ? "ecc_uncorrected" : "ecc_corrected"), -1);
    *out = value;
    return value < 0 ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetNvLinkState(void *gpu, u32 link, u32 *out)
{
    char key[16];
    snprintf(key, sizeof key, "nvlink%u", link);
    return numeric(of(gpu, key), out);
}

typedef struct { u32 pid; u64 memory; u32 gpu_instance, compute_instance; } process;

int nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, u32 *count, process *out)
{
    long long pid = number(of(gpu, "process"), 0);
    u32 room = *count;
    *count = pid != 0;
    if (*count > room)
        return INSUFFICIENT_SIZE;
    if (*count)
        *out = (process){pid, 1 << 30, -1, -1};
    return SUCCESS;
}
