// macchiato: Latte and a sliding window under one softmax over L + 1 states, and its ablations (Latte-Macchiato, Table
// 1).
#include "cortado/mechanisms/latte/mixer.h"

#include "cortado/base/error.h"
#include "cortado/base/words.h"
#include "cortado/mechanisms/macchiato/op.h"
#include "cortado/mechanisms/shared/attention.h"
#include "cortado/mechanisms/shared/ring.h"
#include "cortado/mechanisms/shared/sequences.h"
#include "cortado/mechanisms/shared/student.h"
#include "cortado/nn/norm/norms.h"
#include "cortado/nn/rg_lru.h"
#include "cortado/nn/rotary.h"
#include "cortado/nn/short_convolution.h"
#include "cortado/primitives/common.h"
#include "cortado/primitives/operator_case.h"

namespace cortado {
namespace {

// Where the latents' queries and keys come from: x itself, a short convolution of it, or an RG-LRU and RMSNorm
// (eq. 18 and §4.1).
enum class SourceKind { kX, kConv, kRgLru };

constexpr const char *kTail = "source_tail", *kHidden = "source_h";

// Every sequence of the batch backwards in time.
Tensor reverse_time(const Tensor& x, const Batch& batch) {
  if (!batch.cu_seqlens) return x.flip(1);
  const Tensor bounds = batch.cu_seqlens->to(at::kLong), sequence = sequence_numbers(bounds, x);
  const Tensor from = bounds.index_select(0, sequence), to = bounds.index_select(0, sequence + 1);
  return x.index_select(1, from + to - 1 - at::arange(x.size(1), bounds.options()));
}

// y [B,T,D] from x [B,T,D]. Bidirectional: the convolution and the RG-LRU run in both directions and are summed (the
// paper does not say how; this is our choice).
class Source : public Module {
 public:
  Source(SourceKind kind, int64_t dim, int64_t heads, int64_t taps, bool identity, bool causal)
      : Module("Source"), kind_(kind), causal_(causal) {
    if (kind == SourceKind::kConv) {
      conv_ = std::make_shared<ShortConvolution>(dim, taps, false, "none");
      if (identity) conv_->start_as_identity();
      register_parameter(conv_->weight, "taps", conv_->weight, Role::kMatrix);
    }
    if (kind == SourceKind::kRgLru) {
      rg_lru_ = register_module("rg_lru", std::make_shared<RgLru>(dim, heads));
      norm_ = register_module("norm", std::make_shared<RmsNorm>(dim));
    }
  }

  // The state's "source_tail" (convolution) or "source_h" (RG-LRU) and "position" are read; the first two are moved on.
  Tensor forward(const Tensor& x, const Batch& batch, SequenceState* state) const {
    if (kind_ == SourceKind::kX) return x;
    if (kind_ == SourceKind::kConv) {
      const Tensor y = conv_->forward(x, batch, state, kTail);
      return causal_ ? y : y + reverse_time(conv_->forward(reverse_time(x, batch), batch, nullptr, kTail), batch);
    }
    if (!causal_) return norm_->forward(rg_lru_->bidirectional(x, batch));
    return norm_->forward(rg_lru_->forward(x, batch, state, kHidden));
  }

  Tensor reference(const Tensor& x) const {
    if (kind_ == SourceKind::kX) return x;
    if (kind_ == SourceKind::kRgLru) return norm_->forward(rg_lru_->reference(x, causal_));
    const Tensor y = conv_->reference(x);
    return causal_ ? y : y + conv_->reference(x.flip(1)).flip(1);
  }

  void declare(StateLayout& layout) const {
    if (conv_) conv_->declare(layout, kTail);
    if (rg_lru_) rg_lru_->declare(layout, kHidden);
  }

  int64_t least_part() const { return conv_ ? conv_->weight.size(1) : 1; }

  // But for the weights of its modules.
  double flops_per_token() const {
    if (conv_) return 2.0 * static_cast<double>(conv_->weight.numel());
    return rg_lru_ ? rg_lru_->flops_per_token() : 0.0;
  }

 private:
  SourceKind kind_;
  bool causal_;
  std::shared_ptr<ShortConvolution> conv_;  // not a submodule: its weight [D, taps] is the parameter "taps"
  std::shared_ptr<RgLru> rg_lru_;
  std::shared_ptr<RmsNorm> norm_;
};

// The window's logit starts far from the others' and must be able to come near them in some hundred of AdamW's steps,
// each as large as its rate.
constexpr double kLogitUnit = 200;

const Words<SourceKind> kSources = {{"x", SourceKind::kX}, {"conv", SourceKind::kConv}, {"rg_lru", SourceKind::kRgLru}};

constexpr int64_t kPapersWindow = 129;  // the paper's 128 and the token itself
constexpr int64_t kLatentsOfAHead = 16;

void complete_layer(Json& layer, int64_t heads, bool rotary) {
  if (!layer.contains("latents")) layer["latents"] = kLatentsOfAHead * heads;
  if (!layer.contains("rotary")) layer["rotary"] = rotary;
}

// | Table 1        | settings                                        |
// | Latte          | window null, source x                            |
// | Latte-Conv     | window null, source conv                         |
// | Latte-Conv-SWA | window 129, source conv                          |
// | Latte-R        | window null, source rg_lru                       |
// | Latte-R-SWA    | window 129, source rg_lru (= Latte-Macchiato)    |
// | R-SWA          | window 129, source rg_lru, latents 0             |
//
// With "window_logit" it can take the place of a trained softmax layer (Latte-Macchiato §5.4): q, k, v and o are that
// layer's, and while state 0's logit is high it is sliding-window attention.
class MacchiatoMixer : public Mixer, public SoftmaxStudent {
 public:
  MacchiatoMixer(JsonReader& settings, const MixerContext& context)
      : Mixer("macchiato"), settings_{ProjectionSettings::read_sizes(settings, context), {}} {
    read_scores(settings, settings_);
    settings_.causal = context.causal;
    const int64_t dim = context.dim, heads = settings_.heads, latents = read_latents(settings, context, heads, 0);
    latents_ = latents / heads;
    const SourceKind source = choose(settings, "source", kSources, "rg_lru");
    const int64_t taps = settings.integer("taps", 1, 64, 3);
    const bool identity = read_taps_identity(settings);
    settings_.window = settings.integer_or_null("window", 1, 1 << 30, kPapersWindow);  // null: no window
    if (!settings_.window && latents == 0) settings.fail("latents 0 and no window leave nothing to attend to");
    // Without a window nothing is rotated, and any head size will do.
    const int64_t rotated = settings_.window ? settings_.head_dim : 0;
    settings_.rotary = read_rotary(settings, context, rotated, /*fallback=*/true);
    const std::optional<double> window_logit = settings.optional_number("window_logit", -1e4, 1e4);
    settings.fail_if(window_logit && (!settings_.window || latents == 0),
                     "\"window_logit\" needs a window and latents: there is nothing to weigh");
    source_ = register_module("source", std::make_shared<Source>(source, dim, heads, taps, identity, settings_.causal));
    if (latents > 0) {
      // Per head: the window's logit first (if there is a window), then the latents'.
      const int64_t states = latents_ + (settings_.window ? 1 : 0);
      latent_q_ = register_module("latent_q", std::make_shared<Linear>(dim, heads * states));
      latent_k_ = register_module("latent_k", std::make_shared<Linear>(dim, latents));
    }
    if (settings_.window) {
      window_q_ = register_module("window_q", std::make_shared<Linear>(dim, settings_.width(), settings_.bias));
      window_k_ = register_module("window_k", std::make_shared<Linear>(dim, settings_.kv_width(), settings_.bias));
    }
    v_ = register_module("v", std::make_shared<Linear>(dim, settings_.kv_width(), settings_.bias));
    o_ = register_module("o", make_output_linear(settings_.width(), dim, settings_.output_bias));
    if (!window_logit) return;
    register_parameter(window_logit_, "window_logit", at::full({heads}, *window_logit / kLogitUnit), Role::kGain);
  }

  Tensor reference(const Tensor& x) override {
    Projected p = project(x, source_->reference(x), Batch{}.positions(x));
    const int64_t heads = settings_.heads;
    p.v = expand_heads(p.v, heads);
    if (!settings_.window) {
      return project_output(latte_reference(at::softmax(p.query_logits, -1), p.key_logits, p.v, settings_.causal));
    }
    const Tensor window_k = expand_heads(p.window_k, heads);
    return project_output(latents_ > 0
                              ? macchiato_reference(p.query_logits, p.key_logits, p.v, p.window_q, window_k, settings_)
                              : std::get<0>(window_attention_reference(p.window_q, window_k, p.v, settings_)));
  }

  void declare(StateLayout& layout) const override {
    source_->declare(layout);
    if (latents_ > 0) declare_latte(layout, settings_.heads, latents_, settings_.head_dim);
    if (settings_.window) {
      const std::vector<int64_t> pair = {settings_.kv_heads, settings_.head_dim};
      for (const char* name : {"keys", "values"}) layout.ring(name, pair, StateLayout::last(*settings_.window - 1));
    }
    layout.position();
  }

  double flops_per_token(int64_t tokens) const override {
    const double seen = settings_.window ? static_cast<double>(std::min(tokens, *settings_.window)) : 0.0;
    return weight_flops() + source_->flops_per_token() + 4.0 * seen * static_cast<double>(settings_.width()) +
           static_cast<double>(latents_ * settings_.heads) * (4.0 * static_cast<double>(settings_.head_dim) + 8.0);
  }

  Joining joining() const override {
    return {std::max(source_->least_part(), settings_.window ? least_for_ring(*settings_.window) : 1)};
  }

  Lesson lesson(const Tensor& given) const override {
    const auto type = window_logit_.scalar_type();  // what learns is float32, whatever the frozen weights are
    const Tensor x = given.to(type);
    Projected p = project_latents(source_->forward(x, Batch{}, nullptr));
    project_window(p, given, given, Batch{}.positions(given));
    for (Tensor* part : {&p.v, &p.window_q, &p.window_k}) *part = part->to(type);
    WindowAttentionOptions every_key = settings_;
    every_key.window = std::nullopt;
    const Tensor teacher = std::get<0>(window_attention(p.window_q, p.window_k, p.v, every_key));
    return {teacher, mix(p, Batch{}, nullptr).o};
  }

  Tensor project_output(const Tensor& mixed) const override { return o_->forward(merge_heads(mixed)); }

  std::vector<std::string> learned() const override {
    std::vector<std::string> names;
    if (!window_logit_.defined()) return names;
    for (const auto& entry : named_parameters()) {
      const std::string& name = entry.key();
      if (name.starts_with("source.") || name.starts_with("latent_") || name == "window_logit") names.push_back(name);
    }
    return names;
  }

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override {
    const Tensor y = source_->forward(x, batch, state);
    const Projected p = project(x, y, batch.positions(x, start_of(state, "position")));
    const LatteResult result = mix(p, batch, state);
    if (latents_ > 0) keep_latte(state, result);
    return project_output(result.o);
  }

  // What the output rule needs, [B,T,H,·] each; undefined where the variant has no such part.
  struct Projected {
    Tensor query_logits, key_logits, v, window_q, window_k;
  };

  Projected project(const Tensor& x, const Tensor& y, const Tensor& positions) const {
    Projected p = project_latents(y);
    // R-SWA has no latents: its window's q and k come from the source.
    project_window(p, x, latents_ > 0 ? x : y, positions);
    return p;
  }

  Projected project_latents(const Tensor& y) const {
    Projected p;
    if (latents_ == 0) return p;
    const auto logits = forward_all(y, {latent_q_.get(), latent_k_.get()});
    p.query_logits = split_heads(logits[0], settings_.heads);
    p.key_logits = split_heads(logits[1], settings_.heads);
    if (window_logit_.defined()) {
      const Tensor raised = p.query_logits.narrow(3, 0, 1) + kLogitUnit * window_logit_.unsqueeze(1);
      p.query_logits = at::cat({raised, p.query_logits.narrow(3, 1, latents_)}, 3);
    }
    return p;
  }

  // The window's q and k are made of `from`.
  void project_window(Projected& p, const Tensor& x, const Tensor& from, const Tensor& positions) const {
    const bool together = settings_.window && from.is_same(x);
    std::vector<Tensor> all;
    if (together) all = forward_all(x, {v_.get(), window_q_.get(), window_k_.get()});
    p.v = split_heads(together ? all[0] : v_->forward(x), settings_.kv_heads);
    if (!settings_.window) return;
    if (!together) all = forward_all(from, {window_q_.get(), window_k_.get()});
    p.window_q = split_heads(all[all.size() - 2], settings_.heads);
    p.window_k = split_heads(all.back(), settings_.kv_heads);
    rotate_queries_and_keys(p.window_q, p.window_k, positions, settings_.rotary);
  }

  LatteResult mix(const Projected& p, const Batch& batch, SequenceState* state) const {
    if (!settings_.window) {
      return latte(p.query_logits, p.key_logits, p.v, settings_.causal, latte_start(state, p.key_logits, p.v, batch),
                   batch.cu_seqlens);
    }
    JoinedKeys keys{p.window_k, p.v, std::nullopt, batch.cu_seqlens};
    if (state) keys = advance_ring(*state, p.window_k, p.v, *settings_.window, batch);
    WindowAttentionOptions call = settings_;
    call.cu_seqlens = batch.cu_seqlens;
    if (latents_ > 0) {
      const LatteState start = latte_start(state, p.key_logits, p.v, batch);
      return macchiato(p.query_logits, p.key_logits, p.v, p.window_q, keys, {call, start});
    }
    return {attend_joined(p.window_q, keys, call), {}, {}, {}};
  }

  AttentionSettings settings_;  // of the window; none: Latte alone
  int64_t latents_;             // of a head; 0: R-SWA, the window alone, with q and k from the source
  std::shared_ptr<Source> source_;
  std::shared_ptr<Linear> latent_q_, latent_k_, window_q_, window_k_, v_, o_;
  Tensor window_logit_;  // [H], in units of kLogitUnit
};

// Carried: Latte's state, then the window's keys and values.
Tensors macchiato_call(const Tensors& in, const Tensors& carried) {
  MacchiatoOptions options;
  options.window = kCaseWindow;
  PastKeys past;
  if (!carried.empty()) {
    options.start = {carried[0], carried[1], carried[2]};
    past = {carried[3], carried[4], {}};
  }
  const Tensor &v = in[2], &window_k = in[4];
  const JoinedKeys keys = join_past(past, window_k, v, {});
  Tensors out = macchiato(in[0], in[1], v, in[3], keys, options).tensors();
  const int64_t kept = std::min(kCaseWindow - 1, keys.k.size(1)), first = keys.k.size(1) - kept;
  return join(out, {keys.k.detach().narrow(1, first, kept), keys.v.detach().narrow(1, first, kept)});
}

// What is measured of the operator.
OperatorCase macchiato_case() {
  OperatorCase c{.name = "macchiato", .operation = "macchiato"};
  c.note = concat("Latte and a window of ", kCaseWindow, " keys");
  c.inputs = [](const OperatorSizes& s) {
    return Tensors{heads_of(s, s.size + 1), heads_of(s, s.size), heads_of(s, s.size), heads_of(s, s.size),
                   heads_of(s, s.size)};
  };
  c.call = macchiato_call;
  c.reference = [](const Tensors& in) {
    return Tensors{macchiato_reference(in[0], in[1], in[2], in[3], in[4], {.window = kCaseWindow})};
  };
  c.work = [](const OperatorSizes& s) {
    return Work{4 * state_elements(s), 3 * channels(s)} + window_work(s, kCaseWindow);
  };
  return c;
}

}  // namespace

extern const Mechanism kMacchiato = {
    .name = "macchiato",
    .family = "linear attention + window",
    .paper = "Latte-Macchiato (2025) eq. 15-19",
    .equation = "o_t = p(0|t) window_t + sum_{l>=1} p(l|t) sum_{s<=t} p(s|l,t) v_s",
    .state = "L (D/H + 2) + 2 (w-1) D + D",
    .primitives = {"latte_scan", "gated_scan", "elementwise_scan", "running_max", "window_attention", "short_conv"},
    .bidirectional = true,
    .make = construct<MacchiatoMixer>,
    .compare = R"({"window": 129, "source": "rg_lru"})",
    .latents = true,
    .variants = {{"macchiato-x", R"({"source": "x"})"}, {"macchiato-conv", R"({"source": "conv", "taps": 3})"}},
    .substitute =
        SoftmaxSubstitute{
            .renamed = {{"q", "window_q"}, {"k", "window_k"}},
            .complete = complete_layer,
            .help = "a window and Latte's latents",
            .options = {{.name = "window",
                         .help = "keys of the softmax part",
                         .low = 1,
                         .high = 1 << 30,
                         .fallback = kPapersWindow},
                        {.name = "source",
                         .help = "what latents are made of: x, conv or rg_lru",
                         .words = names_in(kSources),
                         .fallback = "conv"},
                        {.name = "window_logit",
                         .help = "where the window's logit starts",
                         .high = 1e4,
                         .whole = false,
                         .fallback = 20.0},
                        {.name = "latents",
                         .help = "latents of all heads together (default: 16 a head)",
                         .low = 1,
                         .high = 1 << 20}},
            .next_token = true,
        },
    .operation = macchiato_case,
};

}  // namespace cortado
