/* A stand-in for the driver's libnvidia-ml.so.1, whose answers stand in the variable FAKE_NVML:
   "init=0;driver=550.54.15;cuda=12040;gpu=NAME|GPU-UUID|MAJOR.MINOR|MIG-UUID,MIG-UUID;gpu=..." (no last part: MIG off).
   "held=MASK" are the reasons for which clocks are held down, "busy=COUNT" the processes that compute.
   The signatures are those of nvml.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int nvmlReturn_t;
#define MOST 8
static struct { char name[96], uuid[96], mig[MOST][96]; int major, minor, migs, mig_on; } gpus[MOST];
static int count, cuda, opened, held, busy;
static char version[80];

nvmlReturn_t nvmlInit_v2(void) {
    char text[4096], *rest = text, *part;
    int code = 0;
    snprintf(text, sizeof text, "%s", getenv("FAKE_NVML"));
    count = held = busy = 0;
    while ((part = strsep(&rest, ";"))) {
        if (!strncmp(part, "init=", 5)) code = atoi(part + 5);
        if (!strncmp(part, "held=", 5)) held = strtol(part + 5, NULL, 0);
        if (!strncmp(part, "busy=", 5)) busy = atoi(part + 5);
        if (!strncmp(part, "cuda=", 5)) cuda = atoi(part + 5);
        if (!strncmp(part, "driver=", 7)) snprintf(version, sizeof version, "%s", part + 7);
        if (!strncmp(part, "gpu=", 4)) {
            char *fields = part + 4, *migs, *one;
            snprintf(gpus[count].name, 96, "%s", strsep(&fields, "|"));
            snprintf(gpus[count].uuid, 96, "%s", strsep(&fields, "|"));
            sscanf(strsep(&fields, "|"), "%d.%d", &gpus[count].major, &gpus[count].minor);
            migs = strsep(&fields, "|");
            gpus[count].mig_on = migs != NULL;
            gpus[count].migs = 0;
            while (migs && *migs && (one = strsep(&migs, ",")))
                snprintf(gpus[count].mig[gpus[count].migs++], 96, "%s", one);
            count++;
        }
    }
    if (!code) opened++;
    return code;
}
nvmlReturn_t nvmlShutdown(void) { opened--; return 0; }
int fake_nvml_opened(void) { return opened; }
const char *nvmlErrorString(nvmlReturn_t code) { return code == 4 ? "Insufficient Permissions" : "other"; }
nvmlReturn_t nvmlSystemGetDriverVersion(char *out, unsigned size) { snprintf(out, size, "%s", version); return 0; }
nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = cuda; return 0; }
nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *out) { *out = count; return 0; }
nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) { *out = &gpus[index]; return 0; }
nvmlReturn_t nvmlDeviceGetName(void *gpu, char *out, unsigned size) { snprintf(out, size, "%s", (char *)gpu); return 0; }
nvmlReturn_t nvmlDeviceGetUUID(void *gpu, char *out, unsigned size) {
    for (int i = 0; i < count; i++)
        if (gpu == &gpus[i]) { snprintf(out, size, "%s", gpus[i].uuid); return 0; }
    snprintf(out, size, "%s", (char *)gpu); /* the handle of a MIG device is its UUID */
    return 0;
}
nvmlReturn_t nvmlDeviceGetCudaComputeCapability(void *gpu, int *major, int *minor) {
    for (int i = 0; i < count; i++)
        if (gpu == &gpus[i]) { *major = gpus[i].major; *minor = gpus[i].minor; return 0; }
    return 2;
}
nvmlReturn_t nvmlDeviceGetMigMode(void *gpu, unsigned *current, unsigned *pending) {
    for (int i = 0; i < count; i++)
        if (gpu == &gpus[i]) {
            if (gpus[i].major < 8) return 3; /* not supported */
            *current = *pending = gpus[i].mig_on;
            return 0;
        }
    return 2;
}
nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(void *gpu, unsigned *out) { *out = MOST; return 0; }
nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(void *gpu, unsigned index, void **out) {
    for (int i = 0; i < count; i++)
        if (gpu == &gpus[i]) {
            if (index == 0 || (int)index > gpus[i].migs) return 6; /* the first place is free, and those at the end */
            *out = gpus[i].mig[index - 1];
            return 0;
        }
    return 2;
}
nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    for (int i = 0; i < count; i++)
        if (!strcmp(uuid, gpus[i].uuid)) { *out = &gpus[i]; return 0; }
    for (int i = 0; i < count; i++)
        for (int j = 0; j < gpus[i].migs; j++)
            if (!strcmp(uuid, gpus[i].mig[j])) { *out = gpus[i].mig[j]; return 0; }
    return 6;
}
nvmlReturn_t nvmlDeviceGetCurrentClocksThrottleReasons(void *gpu, unsigned long long *out) {
    for (int i = 0; i < count; i++)
        if (gpu == &gpus[i]) { *out = held; return 0; }
    return 3; /* a MIG device has no clock of its own */
}
nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(void *gpu, unsigned *n, void *infos) {
    int room = *n;
    *n = busy;
    if (busy > room) return 7;
    return infos || !busy ? 0 : 2;
}
nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *out) {
    for (int i = 0; i < count; i++)
        if (gpu == &gpus[i]) {
            if (gpus[i].major < 7) return 3; /* before Volta */
            *out = 1500 * (i + 1);
            return 0;
        }
    return 2;
}
