#include "cortado/mechanisms/shared/ring/on_gpu.h"

#include "cortado/mechanisms/shared/ring/ring_gpu.h"
#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"

namespace cortado::window {
namespace {

constexpr int64_t kMostNumbers = int64_t{1} << 30;  // of a row

struct Part {
  Tensor past, added, joined;

  Part(const Tensor& before, const Tensor& now)
      : past(before.numel() ? cuda::in_pieces(before) : before),
        added(cuda::in_pieces(now)),
        joined(at::empty({now.size(0), before.size(1) + now.size(1), now.size(2), now.size(3)}, now.options())) {}

  GpuRing::Part sized() const {
    return {cuda::timed(past), cuda::timed(added), cuda::timed(joined), int(added.size(3))};
  }
};

}  // namespace

bool gpu_joins(const Ring& past, const Tensor& k, const Tensor& v) {
  const auto type = k.scalar_type();
  if (!cuda::is_short(type) || !cuda::are_there({k, v}, {type})) return false;
  for (const Tensor* x : {&past.k, &past.v, &k, &v}) {
    if (x->scalar_type() != type || x->size(3) % 8 != 0 || cuda::is_differentiated(*x)) return false;
  }
  return (past.k.size(1) + k.size(1)) * k.size(2) * k.size(3) < kMostNumbers && past.v.size(2) == k.size(2) &&
         k.size(0) <= cuda::kMostRows;
}

JoinedKeys join_ring_on_gpu(const Ring& past, const Tensor& k, const Tensor& v, cuda::Machine& machine) {
  const c10::DeviceGuard guard(k.device());
  const Part keys(past.k, k), values(past.v, v);
  const Tensor position = past.position.contiguous(), first = at::empty(position.sizes(), position.options());
  GpuRing in{};
  in.keys = keys.sized();
  in.values = values.sized();
  in.position = cuda::long_numbers(position);
  in.first_key = reinterpret_cast<long long*>(first.mutable_data_ptr<int64_t>());
  in.places = int(past.k.size(1));
  in.tokens = int(k.size(1));
  in.heads = int(k.size(2));
  const int64_t pieces = (keys.joined.numel() + values.joined.numel()) / (8 * k.size(0));
  machine.launch({"ring/kernel", "", "join_ring", kGpuRingThreads},
                 {unsigned((pieces + kGpuRingThreads - 1) / kGpuRingThreads), unsigned(k.size(0))}, &in);
  return {keys.joined, values.joined, first, std::nullopt};
}

JoinedKeys join_ring(const Ring& past, const Tensor& k, const Tensor& v) {
  return join_ring_on_gpu(past, k, v, cuda::machine_of(k));
}

}  // namespace cortado::window
