/* kernels/backend_list.c - the backends that are in this build. */
#include "kernels/backend.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/backend_cuda.h"

#include <string.h>

const BackendOps *backend_find(const char *name)
{
    static const BackendOps *const backends[] = {&cpu_backend, &cuda_backend};
    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    return NULL;
}
