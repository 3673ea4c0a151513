// blurry_window: Blurry Window Attention. Softmax over N slots that interpolate the keys and values of the last P
// tokens.
#include "cortado/mechanisms/blurry_window/op.h"
#include "cortado/mechanisms/mechanism.h"
#include "cortado/mechanisms/shared/projected.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {
namespace {

struct BlurrySettings {
  ProjectionSettings projections;
  BlurrySizes sizes;
  bool decay;
};

// State: "key_state", "value_state" [rows,H,N,d] and "position" [rows]; with taps also the tails "q_conv", "k_conv",
// "v_conv".
class BlurryWindowMixer : public ProjectedMixer {
 public:
  BlurryWindowMixer(const BlurrySettings& settings, int64_t dim)
      : ProjectedMixer("blurry_window", settings.projections, dim), settings_(settings) {
    table_ = blurry_weights(at::arange(settings.sizes.period), settings.sizes, at::kDouble);
  }

  Tensor reference(const Tensor& x) override {
    const Projected p = project_reference(x);
    return output(blurry_window_reference(p.q, p.k, p.v, settings_.sizes, settings_.decay, slot_scale({}, p.q)), x);
  }

  double flops_per_token(int64_t) const override { return weight_flops() + scan_flops(4); }  // write and read

 private:
  void declare(StateLayout& layout) const override {
    declare_slots(layout, projections_.heads, settings_.sizes.slots, projections_.head_dim);
    layout.position();
    declare_tails(layout);
  }

  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    if (table_.device() != x.device()) table_ = table_.to(x.device());
    const BlurryOptions options{.sizes = settings_.sizes,
                                .decay = settings_.decay,
                                .key_state = start_of(state, "key_state"),
                                .value_state = start_of(state, "value_state"),
                                .position = start_of(state, "position"),
                                .cu_seqlens = batch.cu_seqlens,
                                .table = table_};
    const Projected p = project(x, batch, state);
    const SlotResult result = blurry_window(p.q, p.k, p.v, options);
    keep_slots(state, result);
    return output(result.o, x);
  }

  BlurrySettings settings_;
  Tensor table_;  // one period of w, [P,N] float64; follows from the settings, so it is not a parameter
};

BlurrySettings read_blurry(JsonReader& settings, const MixerContext& context) {
  BlurrySettings read{};
  const int64_t heads = read_heads(settings, context, context.dim, "dim"), head_dim = context.dim / heads;
  read.sizes.slots = settings.integer("slots", 1, 1 << 20, 33);
  if (read.sizes.slots % 2 == 0) settings.fail("slots must be odd, got ", read.sizes.slots);
  read.sizes.period = settings.integer("period", 1, 1 << 24, read.sizes.slots);
  settings.fail_if(read.sizes.period < read.sizes.slots, "period (", read.sizes.period, ") is less than slots (",
                   read.sizes.slots, ")");
  read.decay = settings.boolean("decay", true);
  read.projections = {heads, heads, head_dim, read_rotary(settings, context, head_dim, context.rotary)};
  read.projections.read_convolutions(settings);
  return read;
}

// The weight of token s in slot n: w_s[n], with decay times Π_{u>s} (1 - w_u[n]).
Tensor blurry_contents(const Json& settings, int64_t tokens) {
  JsonReader reader(settings, "mixer");
  // any number of heads divides 0; the weights are equal for all heads
  const BlurrySettings read = read_blurry(reader, {.dim = 0});
  reader.finish();
  Tensor w = blurry_weights(at::arange(tokens), read.sizes, at::kDouble).t();  // [N, T]
  if (!read.decay) return w;
  Tensor left = at::ones_like(w);
  for (int64_t s = tokens - 2; s >= 0; --s) left.select(1, s).copy_(left.select(1, s + 1) * (1 - w.select(1, s + 1)));
  return w * left;
}

// An odd number of slots, two tokens per slot.
BlurrySizes blurry_sizes(int64_t size) { return {.slots = size | 1, .period = 2 * (size | 1)}; }

// What `cortado bench ops` measures.
OperatorCase blurry_case() {
  OperatorCase c{.name = "blurry_window", .operation = "blurry_window", .note = "size + 1 slots of two tokens each"};
  c.inputs = qkv;
  c.call = [](const Tensors& in, const Tensors& carried) {
    BlurryOptions options{.sizes = blurry_sizes(in[0].size(3))};
    options.key_state = part(carried, 0);
    options.value_state = part(carried, 1);
    if (!carried.empty()) options.position = at::full({1}, kCheckedTokens, at::kLong);
    return blurry_window(in[0], in[1], in[2], options).tensors();
  };
  c.reference = [](const Tensors& in) {
    const BlurrySizes sizes = blurry_sizes(in[0].size(3));
    return Tensors{blurry_window_reference(in[0], in[1], in[2], sizes, true, slot_scale({}, in[0]))};
  };
  c.work = [](const OperatorSizes& s) {
    const auto slots = static_cast<double>(s.heads * blurry_sizes(s.size).slots);
    return Work{8 * slots * static_cast<double>(s.size), slots};
  };
  return c;
}

}  // namespace

extern const Mechanism kBlurryWindow = {
    .name = "blurry_window",
    .family = "slot attention",
    .paper = "Blurry Window Attention (2026) eq. 14-17, §3.3",
    .equation = "o_t = V_t' softmax(K_t q_t / sqrt d), K_t = diag(1 - w_t) K_{t-1} + w_t k_t', w_t[n] = D(t - nP/N)",
    .state = "2 H M d",
    .primitives = {"slot_scan", "gated_scan", "short_conv"},
    .make =
        [](JsonReader& settings, const MixerContext& context) {
          return std::make_shared<BlurryWindowMixer>(read_blurry(settings, context), context.dim);
        },
    .slot_contents = blurry_contents,
    .operation = blurry_case,
};

}  // namespace cortado
