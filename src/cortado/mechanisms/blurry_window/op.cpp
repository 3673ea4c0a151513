#include "cortado/mechanisms/blurry_window/op.h"

#include <numbers>

#include "cortado/primitives/slot_scan/op.h"

namespace cortado {
namespace {

constexpr const char* kBlurryWindowOp = "blurry_window";

// Each token's time, counted from 0 at the start of its sequence: [T]; [B,T] if rows differ; packed [1,T].
Tensor token_times(const Tensor& x, const OptionalTensor& position, const OptionalTensor& cu_seqlens) {
  const Tensor count = at::arange(x.sym_size(1), x.options().dtype(at::kLong));
  if (cu_seqlens) {
    const Tensor sequence = sequence_numbers(*cu_seqlens, x);
    Tensor start = cu_seqlens->to(at::kLong).slice(0, 0, -1);
    if (position) start = start - *position;
    return (count - start.index_select(0, sequence)).unsqueeze(0);
  }
  return position ? count.unsqueeze(0) + position->to(at::kLong).unsqueeze(1) : count;
}

// Adds a dimension for the heads: [T,N] -> [1,T,1,N], [B,T,N] -> [B,T,1,N].
Tensor every_head(const Tensor& x) { return (x.dim() == 2 ? x.unsqueeze(0) : x).unsqueeze(2); }

// Log of the factor left of a slot that is overwritten completely (1 - w = 0). Too small to show in 16 bits, and not
// -inf, for which the tensor-core kernel takes tokens pair by pair.
constexpr double kNothing = -20.8;  // 2^-30

// The scan with decay as a gated scan. Its gates log(1 - w) are positive where w is negative. `weights` is w in the
// operands' type.
SlotPass decaying_pass_by_logs(const Tensor& w, const Tensor& weights, const Tensor& like,
                               const OptionalTensor& cu_seqlens) {
  const std::vector<c10::SymInt> sizes = {like.sym_size(0), like.sym_size(1), 1, w.sym_size(-1)};
  const auto spread = [&](const Tensor& x) { return every_head(x).expand_symint(sizes); };
  return gated_slot_pass(spread(weights), spread((-w).log1p().clamp_min(kNothing)), cu_seqlens);
}

// The scan with decay, by slot_scan. w [T,N] or [B,T,N].
SlotPass decaying_pass(const Tensor& w, const OptionalTensor& cu_seqlens) {
  const Tensor writes = w.dim() == 2 ? w : w.unsqueeze(2), keeps = 1 - writes;
  return [=](const Tensor& q, const Tensor& x, std::string_view read, double scale, const OptionalTensor& start) {
    return slot_scan(q, writes, x, keeps, read, scale, start, cu_seqlens);
  };
}

// In the order of the schema.
struct BlurryArguments {
  const Tensor &q, &k, &v;
  int64_t slots, period;
  bool decay;
  std::optional<double> scale;
  const OptionalTensor &key_state, &value_state, &position, &cu_seqlens;
};
using BlurrySignature = TensorTuple<3>(const Tensor&, const Tensor&, const Tensor&, int64_t, int64_t, bool,
                                       std::optional<double>, const OptionalTensor&, const OptionalTensor&,
                                       const OptionalTensor&, const OptionalTensor&);

TensorTuple<3> blurry_window_operator(const BlurryArguments& in) {
  // checked here and not in blurry_window(): a mixer's own position need not be read back for every token
  OptionalTensor seen;
  if (in.position) {
    seen = checked_integers(*in.position, "[blurry_window] position", 0, std::numeric_limits<int64_t>::max());
  }
  const SlotResult result = blurry_window(in.q, in.k, in.v,
                                          {.sizes = {in.slots, in.period},
                                           .decay = in.decay,
                                           .scale = in.scale,
                                           .key_state = in.key_state,
                                           .value_state = in.value_state,
                                           .position = seen,
                                           .cu_seqlens = in.cu_seqlens});
  return {result.o, result.key_state, result.value_state};
}

}  // namespace

void check_blurry(const BlurrySizes& sizes) {
  constexpr int64_t kMostSlots = 1 << 20, kLongest = int64_t{1} << 40;  // so that their product fits an int64
  fail_input_if(sizes.slots > kMostSlots || sizes.period > kLongest, "[blurry_window] at most ", kMostSlots,
                " slots and a period of ", kLongest, ", got ", sizes.slots, " and ", sizes.period);
  fail_input_if(sizes.slots < 1 || sizes.slots % 2 == 0, "[blurry_window] slots must be odd and positive, got ",
                sizes.slots);
  fail_input_if(sizes.period < sizes.slots, "[blurry_window] period (", sizes.period,
                ") must be at least as large as slots (", sizes.slots, ")");
}

// With x = t - nP/N = j/N, j an integer: D(x) = sin(πj/P) / (N sin(πj/(PN))). Where P divides j, D is set to exactly 1
// (j = 0) or 0.
Tensor blurry_weights(const Tensor& times, const BlurrySizes& sizes, at::ScalarType type) {
  const int64_t n = sizes.slots, p = sizes.period;
  const Tensor slot = at::arange(n, times.options());
  const Tensor j = (times.remainder(p).unsqueeze(-1) * n - slot * p).remainder(p * n);  // 0 <= j < PN
  const Tensor on_grid = j.remainder(p) == 0, here = j == 0;
  const double turn = std::numbers::pi / static_cast<double>(p);
  const Tensor wave = (j.remainder(2 * p).to(at::kDouble) * turn).sin();
  const Tensor slow = (j.to(at::kDouble) * (turn / static_cast<double>(n))).sin() * static_cast<double>(n);
  const Tensor kernel = (wave / slow.masked_fill(on_grid, 1)).masked_fill(on_grid, 0).masked_fill(here, 1);
  return kernel.to(type);
}

SlotResult blurry_window(const Tensor& q, const Tensor& k, const Tensor& v, const BlurryOptions& options) {
  const NoAutocast as_given;
  const BlurrySizes& sizes = options.sizes;
  check_blurry(sizes);
  given_together(kBlurryWindowOp, {&options.key_state, &options.value_state}, "key_state and value_state");
  const Sizes found(kBlurryWindowOp, options.cu_seqlens,
                    {{"v", v, "BThV"},
                     {"k", k, "BThK"},
                     {"q", q, "BTqK"},
                     {"key_state", options.key_state, "NSMK"},
                     {"value_state", options.value_state, "NSMV"}});
  fail_input_if(options.key_state && found['M'] != sizes.slots, "[blurry_window] key_state and value_state of ",
                found['M'], " slots, expected ", sizes.slots);
  const auto type = accumulation_type({q, k, v, options.key_state, options.value_state});
  // Tensor cores need a multiple of eight slots.
  const auto operands = slot_operands(q, v, (sizes.slots + 7) / 8 * 8, type);
  SlotInputs in{q.to(operands),    k.to(operands),     v.to(operands), slot_scale(options.scale, q),
                options.key_state, options.value_state};
  in.k = expand_heads(in.k, found['S']);
  in.v = expand_heads(in.v, found['S']);
  if (options.position) {
    expect_shape(kBlurryWindowOp, "position", *options.position, {found['N']});
    fail_input_if(options.position->device() != k.device(), "[blurry_window] expected position on ", k.device(),
                  " as the others, got ", options.position->device());
  }
  const Tensor times = token_times(k, options.position, options.cu_seqlens);
  const Tensor w = options.table ? options.table->index({times.remainder(sizes.period)}).to(type)
                                 : blurry_weights(times, sizes, type);
  // Slot n is hidden until the first token reaches it: nP/N > t.
  const Tensor reached = at::arange(sizes.slots, times.options()) * sizes.period;
  in.hidden = every_head(reached > times.unsqueeze(-1) * sizes.slots);
  SlotResult result;
  if (options.decay && operands != type) {
    result = attend_slots(in, decaying_pass_by_logs(w, w.to(operands), k, options.cu_seqlens));
  } else if (options.decay) {
    result = attend_slots(in, decaying_pass(w, options.cu_seqlens));
  } else {
    const Tensor writes = every_head(w.to(operands)).expand_symint({k.sym_size(0), k.sym_size(1), 1, sizes.slots});
    result = attend_slots(in, gated_slot_pass(writes, {}, options.cu_seqlens));
  }
  result.o = result.o.to(v.scalar_type());
  return result;
}

TORCH_LIBRARY_FRAGMENT(cortado, m) {
  m.def(
      "blurry_window(Tensor q, Tensor k, Tensor v, *, int slots, int period, bool decay=True, float? scale=None, "
      "Tensor? key_state=None, Tensor? value_state=None, Tensor? position=None, Tensor? cu_seqlens=None) -> (Tensor o, "
      "Tensor key_state, Tensor value_state)",
      torch::dispatch(c10::DispatchKey::CompositeImplicitAutograd, gathered<BlurrySignature, blurry_window_operator>));
}

}  // namespace cortado
