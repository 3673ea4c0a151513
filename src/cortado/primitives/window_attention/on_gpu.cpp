#include "cortado/primitives/window_attention/on_gpu.h"

#include "cortado/primitives/cuda/runtime.h"
#include "cortado/primitives/cuda/tensors.h"
#include "cortado/primitives/operator.h"
#include "cortado/primitives/window_attention/kernel_gpu.h"

namespace cortado::window {

namespace {

constexpr const char* kOp = "window_attention";
constexpr int64_t kWidest = 128;

int width_of(const Tensor& k, const Tensor& v) { return std::max(k.size(3), v.size(3)) <= 64 ? 64 : 128; }

// A call's inputs as the kernels read them, and the number of tiles.
struct Call {
  Tensor q, k, v, first_key;
  cuda::GpuBounds query_bounds, key_bounds;
  GpuAttention in{};
  int width;

  Call(const Tensor& q_given, const Tensor& k_given, const Tensor& v_given, const WindowAttentionOptions& options)
      : q(cuda::in_pieces(q_given)),
        k(cuda::in_pieces(k_given)),
        v(cuda::in_pieces(v_given)),
        query_bounds(Bounds(kOp, options.cu_seqlens, q.size(1)).get(), q.size(1), q.device()),
        key_bounds(Bounds(kOp, options.cu_seqlens_k ? options.cu_seqlens_k : options.cu_seqlens, k.size(1)).get(),
                   k.size(1), q.device()),
        width(width_of(k, v)) {
    in.q = cuda::timed(q);
    in.k = cuda::timed(k);
    in.v = cuda::timed(v);
    in.query_bounds = query_bounds.get();
    in.key_bounds = key_bounds.get();
    in.rows = int(options.cu_seqlens ? query_bounds.numbers.numel() - 1 : q.size(0));
    in.queries = int(q.size(1));
    in.keys = int(k.size(1));
    in.heads = int(std::max({q.size(2), k.size(2), v.size(2)}));
    in.key_size = int(q.size(3));
    in.value_size = int(v.size(3));
    in.window = int(std::min<int64_t>(options.window.value_or(0), 1 << 30));
    in.causal = options.causal;
    in.scale = float(options.scale.value_or(1 / std::sqrt(double(q.size(3)))));
    if (options.first_key) first_key = options.first_key->contiguous();
    if (options.first_key) in.first_key = cuda::long_numbers(first_key);
  }

  Tensor sums() const { return at::empty({q.size(0), q.size(1), in.heads}, q.options().dtype(at::kFloat)); }

  std::string variant() const { return cuda::variant_of(q.scalar_type(), "WIDTH=" + std::to_string(width)); }

  void launch_dots(cuda::Machine& machine, const GpuDots& dots) const {
    if (q.numel() == 0) return;
    machine.launch({"window_attention/kernel", variant(), "attention_dots", cuda::kRowThreads},
                   cuda::row_blocks(q.size(0), q.size(1) * in.heads, in.value_size), &dots);
  }

  // Parts of the keys. More than one if there is one tile of queries and too few of these to fill the GPU; each part
  // has at least two tiles of keys.
  int64_t parts(const cuda::Machine& machine) const {
    if (in.query_bounds || in.queries > kGpuTile) return 1;
    const int64_t seen = in.window ? std::min<int64_t>(in.keys, int64_t(in.window) + in.queries) : in.keys;
    const int64_t alone = int64_t(in.rows) * in.heads;
    return std::clamp<int64_t>(int64_t{2} * machine.multiprocessors() / alone, 1,
                               std::max<int64_t>(1, seen / (int64_t{2} * kGpuTile)));
  }

  void forward_in_parts(cuda::Machine& machine) {
    const auto floats = q.options().dtype(at::kFloat);
    const Tensor o = at::empty({in.parts, q.size(0), q.size(1), in.heads, in.value_size}, floats),
                 row_max = at::empty({in.parts, q.size(0), q.size(1), in.heads}, floats), sum = at::empty_like(row_max);
    in.part_o = o.mutable_data_ptr<float>();
    in.part_max = row_max.mutable_data_ptr<float>();
    in.part_sum = sum.mutable_data_ptr<float>();
    launch(machine, "attention_forward_part", int64_t{kGpuTile} * in.parts, size_t(gpu_forward_bytes(width)));
    const GpuAttentionJoin join{in.part_o,      in.part_max, in.part_sum, in.o,       in.lse,   in.row_max,
                                in.denominator, in.parts,    in.rows,     in.queries, in.heads, in.value_size};
    const int64_t warps = int64_t(in.rows) * in.queries * in.heads, each = kGpuJoinThreads / 32;
    machine.launch({"window_attention/kernel", variant(), "attention_join", kGpuJoinThreads},
                   {unsigned((warps + each - 1) / each)}, &join);
  }

  void launch(cuda::Machine& machine, const char* kernel, int64_t tokens, size_t shared) const {
    const cuda::Blocks blocks{unsigned((tokens + kGpuTile - 1) / kGpuTile), unsigned(in.heads), unsigned(in.rows)};
    if (blocks.x)
      machine.launch({"window_attention/kernel", variant(), kernel, kGpuAttentionThreads, shared}, blocks, &in);
  }
};

}  // namespace

bool gpu_takes(const Tensor& q, const Tensor& k, const Tensor& v, const WindowAttentionOptions& options) {
  if (!cuda::is_short(q.scalar_type()) || !cuda::are_there({q, k, v}, {q.scalar_type()})) return false;
  for (const Tensor* x : {&q, &k, &v}) {
    if (x->size(3) % 8 != 0 || x->size(3) > kWidest) return false;
  }
  const int64_t rows = options.cu_seqlens ? options.cu_seqlens->numel() : q.size(0);
  return !options.extra_k && !options.softcap && (!options.first_key || cuda::is_there(*options.first_key)) &&
         rows <= cuda::kMostRows && q.size(2) <= cuda::kMostRows &&
         cuda::machine_of(q).shared_bytes() >= gpu_gradient_bytes(width_of(k, v));
}

AttentionOutputs forward_on_gpu(const Tensor& q, const Tensor& k, const Tensor& v,
                                const WindowAttentionOptions& options, cuda::Machine& machine, int64_t parts) {
  const c10::DeviceGuard guard(q.device());
  Call call(q, k, v, options);
  const AttentionOutputs out{at::empty({q.size(0), q.size(1), call.in.heads, v.size(3)}, v.options()), call.sums(),
                             call.sums(), call.sums()};
  call.in.o = cuda::timed(out.o);
  call.in.lse = out.lse.mutable_data_ptr<float>();
  call.in.row_max = out.row_max.mutable_data_ptr<float>();
  call.in.denominator = out.denominator.mutable_data_ptr<float>();
  if (!parts) parts = call.parts(machine);
  if (parts > 1) {
    call.in.parts = int(parts);
    call.forward_in_parts(machine);
  } else {
    call.launch(machine, "attention_forward", call.query_bounds.longest, size_t(gpu_forward_bytes(call.width)));
  }
  return out;
}

InputGradients backward_on_gpu(const Tensor& q, const Tensor& k, const Tensor& v, const WindowAttentionOptions& options,
                               const AttentionOutputs& outputs, const OutputGradients& grads, cuda::Machine& machine) {
  const auto& [grad_o, grad_lse] = grads;
  const c10::DeviceGuard guard(q.device());
  Call call(q, k, v, options);
  const Tensor grad = cuda::in_pieces(grad_o.to(q.scalar_type()));
  const Tensor o = cuda::in_pieces(outputs.o), row_max = outputs.row_max.contiguous(),
               denominator = outputs.denominator.contiguous(), lse = call.sums(), delta = call.sums();
  Tensor grad_sums;
  if (grad_lse.defined()) grad_sums = grad_lse.to(at::kFloat).contiguous();
  const GpuDots dots{cuda::timed(o),
                     cuda::timed(grad),
                     row_max.const_data_ptr<float>(),
                     denominator.const_data_ptr<float>(),
                     grad_lse.defined() ? grad_sums.const_data_ptr<float>() : nullptr,
                     lse.mutable_data_ptr<float>(),
                     delta.mutable_data_ptr<float>(),
                     int(q.size(1)),
                     call.in.heads,
                     call.in.value_size};
  call.launch_dots(machine, dots);
  const auto room = [&](const Tensor& x) {
    return at::empty({x.size(0), x.size(1), call.in.heads, x.size(3)}, x.options());
  };
  const Tensor dq = room(q), dk = room(k), dv = room(v);
  call.in.grad_o = cuda::timed(grad);
  call.in.grad_q = cuda::timed(dq);
  call.in.grad_k = cuda::timed(dk);
  call.in.grad_v = cuda::timed(dv);
  call.in.lse = lse.mutable_data_ptr<float>();
  call.in.delta = delta.const_data_ptr<float>();
  const auto shared = size_t(gpu_gradient_bytes(call.width));
  call.launch(machine, "attention_gradient_of_queries", call.query_bounds.longest, shared);
  call.launch(machine, "attention_gradient_of_keys", call.key_bounds.longest, shared);
  return {gradient_of(q, dq), gradient_of(k, dk), gradient_of(v, dv), {}, {}};
}

}  // namespace cortado::window
