// Runs a kernel's tasks on several threads; for the part of kernel.cpp that is compiled once.
#pragma once

#include "cortado/primitives/kernels/kernel.h"

namespace cortado::kernels {
namespace {  // internal linkage, as everything in kernels

template <class Call, class Body>
struct Tasks {
  const Call* call;
  Body body;

  static void work(void* self, int64_t task) {
    const Tasks& tasks = *static_cast<const Tasks*>(self);
    tasks.body(*tasks.call, task);
  }
};

// Calls body(call, i) for every i in [0, count); `body` is already dispatched to an instruction set. A single task runs
// on this thread.
template <class Call, class Body>
void run_tasks(const Call& call, int64_t count, const Parallel& parallel, Body body) {
  if (count == 1) return body(call, 0);
  Tasks<Call, Body> tasks{&call, body};
  if (count > 0) parallel.run(count, &Tasks<Call, Body>::work, &tasks);
}

}  // namespace
}  // namespace cortado::kernels
