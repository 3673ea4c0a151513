// Shared by the tests of kernels: loops over instruction sets, awkward memory layouts, poisoned results.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <limits>

#include "cortado/base/isa.h"

namespace cortado::testing {

using at::Tensor;

// During its lifetime torch fills uninitialised memory with NaN, so that a result that nobody wrote is detected.
class Poisoned {
 public:
  Poisoned() { at::globalContext().setDeterministicAlgorithms(true, true); }
  ~Poisoned() { at::globalContext().setDeterministicAlgorithms(false, false); }
};

// Restores the best instruction set at the end of a test.
class AnyIsa {
 public:
  ~AnyIsa() { select_isa(""); }
};

// Expects that compute() (a list of tensors) gives the same bits on one thread and on several, for each instruction
// set. Different instruction sets may differ: they sum vectors of other lengths, in another order.
template <class Compute>
void expect_any_threads_the_same(const Compute& compute, const std::string& what = "") {
  const AnyIsa back;
  const int threads = at::get_num_threads();
  for (const auto& isa : available_isas()) {
    if (isa == "aten") continue;
    select_isa(isa);
    at::set_num_threads(1);
    const std::vector<Tensor> one = compute();
    for (const int n : {2, 4, 7, 8}) {
      at::set_num_threads(n);
      const std::vector<Tensor> more = compute();
      for (size_t i = 0; i < one.size(); ++i) {
        const bool same = one[i].defined() == more[i].defined() && (!one[i].defined() || at::equal(one[i], more[i]));
        EXPECT_TRUE(same) << "result " << i << " on " << n << " threads with " << isa << " " << what;
      }
    }
  }
  at::set_num_threads(threads);
}

// Copies x into `room` bytes between two protected pages; the tensor begins `at` bytes into them. The rest is filled
// with NaN of any type.
inline Tensor between_pages(const Tensor& x, size_t room, size_t at) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, room + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(memory != MAP_FAILED, "no memory");
  char* begin = static_cast<char*>(memory) + page;
  std::memset(begin, 0xff, room);
  const bool kept = mprotect(memory, page, PROT_NONE) == 0 && mprotect(begin + room, page, PROT_NONE) == 0;
  TORCH_CHECK(kept, "no protected page");
  const auto release = [=](void*) { munmap(memory, room + 2 * page); };
  return at::from_blob(begin + at, x.sizes(), release, x.options()).copy_(x);
}
// Rounds up to a multiple of the page size.
inline size_t whole_pages(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

// Places x densely before a protected page: reading past the last element ends the program.
inline Tensor before_the_end(const Tensor& x) {
  return between_pages(x, whole_pages(x.nbytes()), whole_pages(x.nbytes()) - x.nbytes());
}

// Places x densely after a protected page, with the best possible alignment and NaN past the last element. Every
// second call places x before a protected page instead, if it is 16-byte aligned there.
inline Tensor alone(const Tensor& x) {
  static int64_t number = 0;
  if (number++ % 2 == 1 && x.nbytes() % 16 == 0) return before_the_end(x);
  return between_pages(x, whole_pages(x.nbytes() + 4096), 0);
}

// Copies x into an awkward memory layout:
//  0: misaligned, with gaps between rows
//  1: heads before time
//  2: with gaps between elements
//  3: directly before a protected page
//  4: as the beginning of longer rows, aligned to whole vectors, whose rest is NaN
//  5: as 4, but one element later
inline constexpr int64_t kAwkward = 6;
inline Tensor awkward(const Tensor& x, int64_t how) {
  if (x.defined() && how == 3) return before_the_end(x);
  if (!x.defined() || x.dim() < 3) return x;
  std::vector<int64_t> sizes = x.sizes().vec();
  Tensor y;
  if (how == 0) {
    sizes.back() += 3;
    y = at::empty(sizes, x.options()).narrow(-1, 1, x.size(-1));
  } else if (how == 1) {
    std::swap(sizes[1], sizes[2]);
    y = at::empty(sizes, x.options()).transpose(1, 2);
  } else if (how == 2) {
    sizes.back() *= 2;
    y = at::empty(sizes, x.options()).slice(-1, 0, sizes.back(), 2);
  } else {
    const int64_t first = how == 5 ? 1 : 0;
    sizes.back() = (sizes.back() + first + 15) / 16 * 16;
    y = at::full(sizes, std::numeric_limits<double>::quiet_NaN(), x.options()).narrow(-1, first, x.size(-1));
  }
  return y.copy_(x);
}

}  // namespace cortado::testing
