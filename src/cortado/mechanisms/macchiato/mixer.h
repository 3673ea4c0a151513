// macchiato: Latte and a sliding window under one softmax over L + 1 states, and its ablations (Latte-Macchiato, Table
// 1).
#pragma once

#include "cortado/mechanisms/latte/mixer.h"
#include "cortado/mechanisms/macchiato/op.h"
#include "cortado/mechanisms/macchiato/source.h"
#include "cortado/mechanisms/shared/student.h"

namespace cortado {

extern const Mechanism kMacchiato;
OperatorCase macchiato_case();

struct MacchiatoSettings {
  int64_t heads, kv_heads, head_dim;  // of the window; the latents have as many as its queries
  int64_t latents;                    // 0: R-SWA, the window alone, with q and k from the source
  SourceKind source;
  int64_t taps;
  std::optional<int64_t> window;  // none: Latte alone
  std::optional<Rotary> rotary;   // none: no rotary positions in the window
  bool causal;
  bool bias = false, output_bias = false;  // of the window's q, k and v; of o
  std::optional<double> scale, softcap;    // of the window's scores; none: 1/√d, no cap
  std::optional<double> window_logit;      // where a learned addition to state 0's logit starts; none: there is none
};

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
  MacchiatoMixer(const MacchiatoSettings& settings, int64_t dim);

  Tensor reference(const Tensor& x) override;
  StateLayout state_layout() const override;
  double flops_per_token(int64_t tokens) const override;

  Lesson lesson(const Tensor& x) const override;
  Tensor project_output(const Tensor& mixed) const override { return o_->forward(merge_heads(mixed)); }
  std::vector<std::string> learned() const override;

 private:
  Tensor mix(const Tensor& x, const Batch& batch, SequenceState* state) override;

  // What the output rule needs, [B,T,H,·] each; undefined where the variant has no such part.
  struct Projected {
    Tensor query_logits, key_logits, v, window_q, window_k;
  };
  Projected project(const Tensor& x, const Tensor& y, const Tensor& positions) const;
  Projected project_latents(const Tensor& y) const;
  // The window's q and k are made of `from`.
  void project_window(Projected& p, const Tensor& x, const Tensor& from, const Tensor& positions) const;
  LatteResult mix(const Projected& p, const Batch& batch, SequenceState* state) const;
  WindowAttentionOptions window_options() const;
  MacchiatoOptions options() const;
  // The window's keys and values, old and new; moves the state's ring on.
  JoinedKeys window_keys(const Projected& p, const Batch& batch, SequenceState* state) const;

  MacchiatoSettings settings_;
  int64_t dim_, latents_;  // latents_: per head
  std::shared_ptr<Source> source_;
  std::shared_ptr<Linear> latent_q_, latent_k_, window_q_, window_k_, v_, o_;
  Tensor window_logit_;  // [H], in units of kLogitUnit
};

}  // namespace cortado
