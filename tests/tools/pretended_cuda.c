/* A driver without a GPU: it says what it is asked on the file CORTADO_PRETENDED_CUDA names. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE* out(void) {
  static FILE* file;
  if (!file) {
    file = fopen(getenv("CORTADO_PRETENDED_CUDA"), "a");
    setvbuf(file, NULL, _IONBF, 0);
  }
  return file;
}

/* 90: 9.0, an H100. */
static int capability(void) {
  const char* given = getenv("CORTADO_PRETENDED_CAPABILITY");
  return given ? atoi(given) : 90;
}

static const char* functions[] = {"time_softmax_summarize", "time_softmax_join", "time_softmax_apply"};
static void* context;

int cuInit(unsigned flags) { return (int)flags; }
int cuDriverGetVersion(int* number) { return *number = 13000, 0; }
int cuGetErrorName(int error, const char** text) {
  *text = error == 500 ? "CUDA_ERROR_NOT_FOUND" : "CUDA_ERROR_UNKNOWN";
  return 0;
}
int cuDeviceGet(int* device, int ordinal) { return *device = ordinal, ordinal != 0; }
int cuDeviceGetName(char* text, int length, int device) {
  snprintf(text, (size_t)length, "Pretended GPU");
  return device;
}
int cuDeviceGetAttribute(int* value, int which, int device) {
  *value = which == 16 ? 132 : which == 75 ? capability() / 10 : which == 76 ? capability() % 10 : which == 97 ? 232448 : -1;
  return device;
}
int cuDevicePrimaryCtxRetain(void** found, int device) {
  fprintf(out(), "retain %d\n", device);
  *found = out();
  return 0;
}
int cuCtxGetCurrent(void** found) { return *found = context, 0; }
int cuCtxSetCurrent(void* given) { return context = given, 0; }
int cuModuleLoadData(void** module, const char* image) {
  fprintf(out(), "load %s\n", memcmp(image, "\177ELF", 4) == 0 ? "ELF" : "something else");
  *module = out();
  return 0;
}
int cuModuleGetFunction(const char** function, void* module, const char* name) {
  for (unsigned i = 0; i < 3; ++i) {
    if (strcmp(functions[i], name) == 0) return *function = functions[i], module == NULL;
  }
  return 500;
}
int cuFuncSetAttribute(const char* function, int which, int value) {
  fprintf(out(), "attribute %s %d %d\n", function, which, value);
  return 0;
}
int cuLaunchKernel(const char* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                   unsigned threads_z, unsigned shared, void* stream, void** parameters, void** extra) {
  fprintf(out(), "launch %s %u %u %u, %u %u %u, %u on %p: %d\n", function, x, y, z, threads, threads_y, threads_z, shared, stream,
          *(int*)parameters[0]);
  return extra != NULL;
}
/* Of torch's stream: not the first time, then always. */
int cuStreamIsCapturing(void* stream, int* status) {
  static int asked;
  return *status = asked++ > 0, stream != (void*)0x5ull;
}
/* NVRTC asks a driver that is there for a table of functions, and reads its size. */
int cuGetExportTable(const void** table, const void* which) {
  static const unsigned long long size = 8;
  return *table = &size, which == NULL;
}
/* Torch's, which a build for the CPU has not. */
int aoti_torch_get_current_cuda_stream(int device, void** stream) { return *stream = (void*)0x5ull, device; }
