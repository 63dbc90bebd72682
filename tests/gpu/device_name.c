/*
 * For tests only, loaded by LD_PRELOAD: lets ggml-opencl compute on Intel's OpenCL runtime for CPUs. The
 * backend takes devices whose names contain "Intel"; the runtime's compiler lacks some relaxed built-ins for
 * half, and takes as an error what the compilers of devices take as a warning. No queue, kernel or event is
 * changed.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CL_DEVICE_NAME 0x102B

typedef int32_t device_info(void *, uint32_t, size_t, void *, size_t *);
typedef int32_t build_program(void *, uint32_t, const void *, const char *, void *, void *);
typedef void *with_source(void *, uint32_t, const char **, const size_t *, int32_t *);

/* The backend is loaded as a plug-in, so its libraries are not in the global scope and RTLD_NEXT does not
 * find them. */
static void *real(const char *name) { return dlsym(dlopen("libOpenCL.so.1", RTLD_LAZY), name); }

int32_t clGetDeviceInfo(void *device, uint32_t what, size_t size, void *value, size_t *size_ret) {
    static const char name[] = "CPU (as if of Intel)";

    if (what != CL_DEVICE_NAME)
        return ((device_info *)real("clGetDeviceInfo"))(device, what, size, value, size_ret);
    if (size_ret) *size_ret = sizeof(name);
    if (value) strncpy(value, name, size);
    return 0;
}

int32_t clBuildProgram(void *program, uint32_t n, const void *devices, const char *options, void *done,
                       void *user) {
    static const char *const refused[] = {"-cl-fast-relaxed-math", "-cl-unsafe-math-optimizations",
                                          "-cl-finite-math-only"};
    char *own = options ? strdup(options) : NULL;

    for (unsigned i = 0; own && i < sizeof(refused) / sizeof(*refused); i++) {
        char *at = strstr(own, refused[i]);

        if (at) memset(at, ' ', strlen(refused[i]));
    }
    int32_t status = ((build_program *)real("clBuildProgram"))(program, n, devices, own, done, user);

    free(own);
    return status;
}

/* rope.cl assigns the address of a float to a pointer to half. */
void *clCreateProgramWithSource(void *context, uint32_t n, const char **text, const size_t *size,
                                int32_t *status) {
    static const char pragma[] = "#pragma clang diagnostic ignored \"-Wincompatible-pointer-types\"\n";
    const char *texts[n + 1];
    size_t sizes[n + 1];

    texts[0] = pragma;
    sizes[0] = sizeof(pragma) - 1;
    for (uint32_t i = 0; i < n; i++) {
        texts[i + 1] = text[i];
        sizes[i + 1] = size && size[i] ? size[i] : strlen(text[i]);
    }
    return ((with_source *)real("clCreateProgramWithSource"))(context, n + 1, texts, sizes, status);
}
