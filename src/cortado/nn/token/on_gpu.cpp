#include "cortado/nn/token/on_gpu.h"

#include <algorithm>

#include "cortado/nn/token/linear_gpu.h"
#include "cortado/nn/token/norm_gpu.h"
#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"

namespace cortado::token {
namespace {

constexpr const char* kSource = "token/kernel";
constexpr int64_t kMostRows = int64_t{kGpuLinearTiles} * kGpuLinearRows, kMostNumbers = int64_t{1} << 30;
// Every block reads all of x. With more rows than kReadOnce that is more than its weights, and many blocks wait for it.
constexpr int64_t kReadOnce = kGpuLinearOut, kFewOutputs = 8192;

// Tensors that will be differentiated are refused.
bool reads(const Tensor& x) {
  return cuda::is_there(x) && cuda::is_short(x.scalar_type()) && x.numel() < kMostNumbers &&
         !cuda::is_differentiated(x);
}

std::string variant(const Tensor& x) { return cuda::variant_of(x.scalar_type()); }

Tensor room_for(const Tensor& x, int64_t out) {
  auto sizes = x.sizes().vec();
  sizes.back() = out;
  return at::empty(sizes, x.options());
}

GpuMap map_of(const Map& map, const Tensor& y) {
  return {map.weight.const_data_ptr(), map.bias ? map.bias->const_data_ptr() : nullptr,
          map.onto ? map.onto->const_data_ptr() : nullptr, y.defined() ? y.mutable_data_ptr() : nullptr,
          int(map.weight.size(0))};
}

GpuLinear sized(const Tensor& x) {
  GpuLinear in{};
  in.x = x.const_data_ptr();
  in.in = int(x.size(-1));
  in.rows = int(x.numel() / x.size(-1));
  return in;
}

void launch(cuda::Machine& machine, const Tensor& x, const GpuLinear& in, int64_t blocks) {
  int tiles = 1;
  while (tiles * kGpuLinearRows < in.rows) tiles *= 2;
  const std::string name = "linear_of_" + std::to_string(tiles * kGpuLinearRows) + "_rows";
  machine.launch({kSource, variant(x), name.c_str(), kGpuLinearThreads, size_t(gpu_linear_bytes(tiles))},
                 {unsigned(blocks), in.gated ? 1u : unsigned(in.count)}, &in);
}

int64_t blocks_of(int64_t out, int64_t each) { return (out + each - 1) / each; }

}  // namespace

bool gpu_multiplies(const Tensor& x, const std::vector<Map>& maps) {
  if (maps.empty() || maps.size() > size_t(kGpuMaps) || !reads(x)) return false;
  const int64_t in = x.size(-1), rows = x.numel() / in;
  if (in % 8 != 0 || rows > kMostRows) return false;
  int64_t all = 0;
  for (const Map& map : maps) all += map.weight.size(0);
  if (rows > kReadOnce && all > kFewOutputs) return false;
  return std::all_of(maps.begin(), maps.end(), [&](const Map& map) {
    const auto same = [&](const Tensor& w) {
      return reads(w) && w.scalar_type() == x.scalar_type() && cuda::is_dense(w);
    };
    return same(map.weight) && map.weight.size(1) == in && (!map.bias || same(*map.bias)) &&
           (!map.onto || (same(*map.onto) && map.onto->numel() == rows * map.weight.size(0)));
  });
}

std::vector<Tensor> linear_on_gpu(const Tensor& x, const std::vector<Map>& maps, cuda::Machine& machine) {
  const c10::DeviceGuard guard(x.device());
  const Tensor from = cuda::dense(x);
  GpuLinear in = sized(from);
  std::vector<Tensor> made;
  int64_t blocks = 0;
  for (const Map& map : maps) {
    made.push_back(room_for(x, map.weight.size(0)));
    in.maps[in.count++] = map_of(map, made.back());
    blocks = std::max(blocks, blocks_of(map.weight.size(0), kGpuLinearOut));
  }
  launch(machine, x, in, blocks);
  return made;
}

Tensor gated_silu_on_gpu(const Tensor& x, const Map& gate, const Map& up, cuda::Machine& machine) {
  const c10::DeviceGuard guard(x.device());
  const Tensor from = cuda::dense(x), made = room_for(x, gate.weight.size(0));
  GpuLinear in = sized(from);
  in.count = 2;
  in.gated = 1;
  in.maps[0] = map_of(gate, made);
  in.maps[1] = map_of(up, {});
  launch(machine, x, in, blocks_of(gate.weight.size(0), kGpuLinearOut / 2));
  return made;
}

std::vector<Tensor> linear(const Tensor& x, const std::vector<Map>& maps) {
  return linear_on_gpu(x, maps, cuda::machine_of(x));
}

Tensor gated_silu(const Tensor& x, const Map& gate, const Map& up) {
  return gated_silu_on_gpu(x, gate, up, cuda::machine_of(x));
}

bool gpu_norms(const Tensor& x, const Tensor& weight, int64_t groups) {
  return reads(x) && reads(weight) && weight.scalar_type() == x.scalar_type() && x.size(-1) == weight.numel() &&
         x.size(-1) % (8 * groups) == 0 && x.numel() / x.size(-1) <= cuda::kMostRows;
}

Normed rms_norm_on_gpu(const Tensor& x, const OptionalTensor& branch, const Tensor& weight, double eps, int64_t groups,
                       cuda::Machine& machine) {
  const c10::DeviceGuard guard(x.device());
  const Tensor from = cuda::dense(x), more = branch ? cuda::dense(*branch) : Tensor(), by = cuda::dense(weight);
  const Normed made{branch ? at::empty(x.sizes(), x.options()) : x, at::empty(x.sizes(), x.options())};
  GpuNorm in{};
  in.x = from.const_data_ptr();
  in.branch = branch ? more.const_data_ptr() : nullptr;
  in.weight = by.const_data_ptr();
  in.sum = branch ? made.sum.mutable_data_ptr() : nullptr;
  in.y = made.y.mutable_data_ptr();
  in.groups = int(groups);
  in.width = int(x.size(-1) / groups);
  in.eps = float(eps);
  machine.launch({kSource, variant(x), "rms_norm", kGpuNormThreads, kGpuNormBytes},
                 {unsigned(groups), unsigned(x.numel() / x.size(-1))}, &in);
  return made;
}

Normed rms_norm(const Tensor& x, const OptionalTensor& branch, const Tensor& weight, double eps, int64_t groups) {
  return rms_norm_on_gpu(x, branch, weight, eps, groups, cuda::machine_of(x));
}

}  // namespace cortado::token
