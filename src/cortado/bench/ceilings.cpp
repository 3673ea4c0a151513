#include "cortado/bench/ceilings.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>

#include "cortado/base/error.h"
#include "cortado/base/stopwatch.h"
#include "cortado/bench/kernel.h"
#include "cortado/primitives/kernels/tensors.h"

namespace cortado {
namespace {

constexpr int kTries = 5;
constexpr double kAtLeast = 0.01;  // seconds a try
constexpr int64_t kStreamFloats = int64_t{16} << 20;

// Amount a second, the best of several tries; `work(n)` does n times `amount`.
double best_rate(double amount, const std::function<void(int64_t n)>& work) {
  int64_t n = 1;
  double seconds = seconds_of([&] { work(n); });
  while (seconds < kAtLeast) {
    n *= 2;
    seconds = seconds_of([&] { work(n); });
  }
  double best = 0;
  for (int i = 0; i < kTries; ++i) {
    best = std::max(best, amount * static_cast<double>(n) / seconds_of([&] { work(n); }));
  }
  return best;
}

// torch's own name for a linear layer through oneDNN, in float32 too; null where torch has no oneDNN.
std::function<at::Tensor(const at::Tensor&, const at::Tensor&)> onednn_linear() {
  if (!at::hasMKLDNN()) return nullptr;
  const auto found = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (!found) return nullptr;
  return [handle = *found](const at::Tensor& x, const at::Tensor& weight) {
    torch::jit::Stack stack{
        x, weight, c10::IValue(), std::string("none"), c10::List<std::optional<at::Scalar>>(), std::string()};
    handle.callBoxed(stack);
    return stack.front().toTensor();
  };
}

void measure_matmul(Ceilings& ceilings) {
  const auto onednn = onednn_linear();
  for (const int64_t size : {512, 1024, 2048}) {
    const at::Tensor a = at::randn({size, size}), b = at::randn({size, size});
    const double flops = 2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
    const auto offer = [&](const char* name, const std::function<void()>& product) {
      const double rate = best_rate(flops, [&](int64_t n) {
        for (int64_t i = 0; i < n; ++i) product();
      });
      if (rate <= ceilings.matmul_flops) return;
      ceilings.matmul_flops = rate;
      ceilings.matmul = concat(name, " ", size);
    };
    at::Tensor out = at::empty({size, size});
    offer(at::hasMKL() ? "MKL" : "BLAS", [&] { at::mm_out(out, a, b); });
    if (onednn) offer("oneDNN", [&] { onednn(a, b); });
  }
}

}  // namespace

void Ceilings::raise_to(const Ceilings& other) {
  fma_flops = std::max(fma_flops, other.fma_flops);
  if (other.matmul_flops > matmul_flops) matmul = other.matmul;
  matmul_flops = std::max(matmul_flops, other.matmul_flops);
  read_bytes = std::max(read_bytes, other.read_bytes);
  stream_bytes = std::max(stream_bytes, other.stream_bytes);
  exps = std::max(exps, other.exps);
}

Json Ceilings::to_json() const {
  return {{"fma_flops", fma_flops},   {"matmul_flops", matmul_flops}, {"matmul", matmul},
          {"read_bytes", read_bytes}, {"stream_bytes", stream_bytes}, {"exps", exps}};
}

Ceilings measure_ceilings() {
  const at::NoGradGuard no_grad;
  const auto parallel = kernels::parallel();
  const auto threads = static_cast<double>(parallel.threads);
  Ceilings result;
  constexpr int64_t kRounds = 10000;
  result.fma_flops = best_rate(threads * kRounds * bench::kFmaFlops * static_cast<double>(bench::lanes()),
                               [&](int64_t n) { bench::fma_loop(parallel, n * kRounds); });
  result.exps = best_rate(threads * bench::kExpBlock, [&](int64_t n) { bench::exp_loop(parallel, n); });
  const int64_t unit = 128 * parallel.threads, floats = kStreamFloats / unit * unit;
  const at::Tensor buffer = at::ones({4 * floats});
  float* data = buffer.mutable_data_ptr<float>();
  result.read_bytes = best_rate(16.0 * static_cast<double>(floats), [&](int64_t n) {
    for (int64_t i = 0; i < n; ++i) bench::read_loop(parallel, data, 4 * floats);
  });
  for (const bool past_caches : {false, true}) {
    const double rate = best_rate(12.0 * static_cast<double>(floats), [&](int64_t n) {
      for (int64_t i = 0; i < n; ++i) {
        bench::triad_loop(parallel, data, data + floats, data + 2 * floats, floats, past_caches);
      }
    });
    result.stream_bytes = std::max(result.stream_bytes, rate);
  }
  measure_matmul(result);
  return result;
}

}  // namespace cortado
