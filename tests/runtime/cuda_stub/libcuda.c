// Stands in for the NVIDIA driver: answers every call that nibblas makes, and writes each to a log.
//
// Device memory is host memory; contexts, modules and functions are fixed numbers.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  kSuccess = 0,
  kInvalidValue = 1,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kNotFound = 500,
};
enum { kDevices = 2, kContext = 0x100, kModule = 0x200, kFunction = 0x300 };

static int version = 13000;
static int init_status = kSuccess;
static char text[1 << 16];
static size_t length;
static uint64_t contexts[16];
static int depth;
static int capture_mode;

void stub_set_version(int value) { version = value; }
void stub_set_init_status(int value) { init_status = value; }
const char* stub_log(void) { return text; }
void stub_clear_log(void) { text[length = 0] = 0; }

static void say(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  length += vsnprintf(text + length, sizeof(text) - length, format, arguments);
  va_end(arguments);
  length += snprintf(text + length, sizeof(text) - length, "\n");
}

int cuInit(unsigned flags) { return init_status; }
int cuDriverGetVersion(int* value) { return *value = version, kSuccess; }
int cuGetErrorString(int status, const char** value) { return *value = "from the stub", kSuccess; }
int cuDeviceGetCount(int* count) { return *count = kDevices, kSuccess; }

int cuDeviceGet(int* device, int ordinal) {
  if (ordinal >= kDevices) return kInvalidDevice;
  return *device = ordinal, kSuccess;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  return *value = 1000 * device + attribute, kSuccess;
}

int cuDevicePrimaryCtxRetain(uint64_t* context, int device) {
  say("retain %d", device);
  return *context = kContext + device, kSuccess;
}

static uint64_t current(void) { return depth ? contexts[depth - 1] : 0; }

int cuCtxGetCurrent(uint64_t* context) { return *context = current(), kSuccess; }
int cuCtxPushCurrent(uint64_t context) { return contexts[depth++] = context, kSuccess; }
int cuCtxPopCurrent(uint64_t* context) { return *context = contexts[--depth], kSuccess; }

int cuThreadExchangeStreamCaptureMode(int* mode) {
  const int before = capture_mode;
  capture_mode = *mode;
  return *mode = before, kSuccess;
}

int cuModuleLoadData(uint64_t* module, const char* image) {
  say("load %s context %lx capture mode %d", image, current(), capture_mode);
  return *module = kModule, kSuccess;
}

int cuModuleGetFunction(uint64_t* function, uint64_t module, const char* name) {
  say("function %lx %s context %lx", module, name, current());
  return strcmp(name, "absent") ? (*function = kFunction, kSuccess) : kNotFound;
}

int cuFuncLoad(uint64_t function) { return say("load function %lx", function), kSuccess; }

int cuFuncSetAttribute(uint64_t function, int attribute, int value) {
  return say("attribute %d of %lx = %d", attribute, function, value), kSuccess;
}

int cuMemAlloc(uint64_t* address, size_t size) {
  return *address = (uint64_t)malloc(size), kSuccess;
}
int cuMemFree(uint64_t address) { return free((void*)address), kSuccess; }
int cuMemcpyHtoD(uint64_t to, const void* from, size_t size) {
  return memcpy((void*)to, from, size), kSuccess;
}
int cuMemcpyDtoH(void* to, uint64_t from, size_t size) {
  return memcpy(to, (void*)from, size), kSuccess;
}

int cuStreamSynchronize(uint64_t queue) {
  return say("synchronize %lx context %lx", queue, current()), kSuccess;
}

int cuTensorMapEncodeTiled(void* map, int type, unsigned rank, uint64_t address,
                           const uint64_t* dims, const uint64_t* strides, const unsigned* box,
                           const unsigned* steps, int interleave, int swizzle, int promotion,
                           int fill) {
  if (strides == NULL) return kInvalidValue;  // at rank 1 too, as driver 580.159.04 does
  const unsigned last = rank - 1;             // of the dimensions, the outermost
  say("encode type %d rank %u at %lx dims %lu %lu stride %lu box %u %u steps %u %u modes %d %d %d "
      "%d",
      type, rank, address, dims[0], dims[last], strides[0], box[0], box[last], steps[0],
      steps[last], interleave, swizzle, promotion, fill);
  for (int i = 0; i < 128; ++i) ((unsigned char*)map)[i] = i;
  memcpy(map, &address, 8);
  return kSuccess;
}

typedef struct {
  unsigned grid[3], block[3], shared_bytes;
  uint64_t queue;
  void* attributes;
  unsigned attribute_count;
} LaunchConfig;

int cuLaunchKernelEx(const LaunchConfig* c, uint64_t function, void** parameters, void** extra) {
  say("launch %lx context %lx grid %u %u %u block %u %u %u shared %u queue %lx attributes %u: %.4s",
      function, current(), c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1],
      c->block[2], c->shared_bytes, c->queue, c->attribute_count, (const char*)parameters[0]);
  return c->grid[0] == 0 ? kInvalidValue : kSuccess;
}

int cuOccupancyMaxActiveClusters(int* clusters, uint64_t function, const LaunchConfig* c) {
  say("clusters of %lx context %lx grid %u block %u shared %u attributes %u", function, current(),
      c->grid[0], c->block[0], c->shared_bytes, c->attribute_count);
  *clusters = 36;
  return c->grid[0] == 0 ? kInvalidValue : kSuccess;
}

int cuGetProcAddress(const char* name, void** address, int cuda, uint64_t flags, int* result) {
  void* self = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
  *address = self ? dlsym(self, name) : NULL;
  if (result) *result = *address ? 0 : 1;
  return *address ? kSuccess : kNotFound;
}
int cuGetProcAddress_v2(const char* name, void** address, int cuda, uint64_t flags, int* result) {
  return cuGetProcAddress(name, address, cuda, flags, result);
}
