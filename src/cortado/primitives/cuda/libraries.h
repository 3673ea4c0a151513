// NVIDIA's driver and run-time compiler (NVRTC), opened at run time. The few functions that we call are declared by
// hand, because NVIDIA's headers are not available when this is built.
#pragma once

#include <cstddef>
#include <string>

namespace cortado::cuda {

using Context = struct OpaqueContext*;
using Module = struct OpaqueModule*;
using Function = struct OpaqueFunction*;
using Program = struct OpaqueProgram*;

struct Driver {
  int (*init)(unsigned flags);
  int (*version)(int* number);
  int (*error_name)(int error, const char** text);
  int (*device_get)(int* device, int ordinal);
  int (*device_name)(char* text, int length, int device);
  int (*attribute)(int* value, int which, int device);
  int (*retain)(Context* context, int device);
  int (*current)(Context* context);
  int (*set_current)(Context context);
  int (*load)(Module* module, const void* image);
  int (*function)(Function* function, Module module, const char* name);
  int (*set_attribute)(Function function, int which, int value);
  int (*is_capturing)(void* stream, int* status);  // status 0: no
  int (*launch)(Function function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                unsigned threads_z, unsigned shared, void* stream, void** parameters, void** extra);

  // Throws Failure with the driver's name for the error.
  void check(int error, const char* what) const;
};

// Throws Failure if the library is missing or too old.
const Driver& driver();

struct Compiler {
  int (*version)(int* major, int* minor);
  int (*count_architectures)(int* count);
  int (*architectures)(int* numbers);  // 90: sm_90
  int (*create)(Program* program, const char* text, const char* name, int headers, const char* const* texts,
                const char* const* names);
  int (*compile)(Program program, int count, const char* const* options);
  int (*log_size)(Program program, size_t* size);
  int (*log)(Program program, char* text);
  int (*binary_size)(Program program, size_t* size);
  int (*binary)(Program program, char* bytes);
  int (*destroy)(Program* program);
};

const Compiler& compiler();

}  // namespace cortado::cuda
